"""Late writes in a burst, so that whatever is added is put off. Not a test."""

from __future__ import annotations

from baton_serve.core.net.client.connection import Connection
from baton_serve.core.net.late_writes import BURST, LateWrites
from tests.kits.clock import Turns


def in_a_burst() -> tuple[LateWrites, Turns]:
    """The writes, and the loop whose next turn makes them. Needs a running loop."""
    turns = Turns()
    late_writes = LateWrites(turns)
    for _ in range(BURST + 2):
        late_writes.add(Connection([], set()))  # which has nothing to write
    turns.next()
    return late_writes, turns
