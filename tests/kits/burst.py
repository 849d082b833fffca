"""Late writes in a burst, so that whatever is added is put off. Not a test."""

from __future__ import annotations

from core.net.late_writes import BURST, LateWrites, Writer
from tests.kits.clock import Turns


class _Nothing(Writer):
    def write_now(self) -> None:
        pass


def in_a_burst() -> tuple[LateWrites, Turns]:
    """The writes, and the loop whose next turn makes them."""
    turns = Turns()
    late_writes = LateWrites(turns)
    for _ in range(BURST + 2):
        late_writes.add(_Nothing())
    turns.next()
    return late_writes, turns
