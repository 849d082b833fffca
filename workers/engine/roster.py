"""Every sequence that has not ended, found by id, by request id, by urgency. The state is the sequence's own."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

from workers.engine.errors import LedgerError
from workers.engine.sequence_state import ENDED, QUEUED, State
from workers.engine.wait_queue import WaitQueue

if TYPE_CHECKING:
    from workers.engine.sequence import Sequence

_KEY = attrgetter("key")


class Roster:
    """``running`` is sorted by ``Sequence.key``: its last is preempted first. ``reads`` is by read id.

    A sequence that closes is in ``running`` and ``queue`` no more, and unknown by its request id; its read stays.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Sequence] = {}
        self.by_request: dict[str, Sequence] = {}
        self.queue = WaitQueue()
        self.running: list[Sequence] = []
        self.reads: dict[int, Sequence] = {}

    def add(self, seq: Sequence) -> None:
        """A new sequence; queued unless it connects first."""
        self.by_id[seq.id] = seq
        self.by_request[seq.request.request_id] = seq
        if seq.state in QUEUED:
            self.queue.push(seq)

    def add_running(self, seq: Sequence) -> None:
        """It is RUNNING now."""
        insort(self.running, seq, key=_KEY)

    def remove_running(self, seq: Sequence) -> None:
        """It is RUNNING no more; nothing happens if it was not."""
        index = bisect_left(self.running, seq.key, key=_KEY)
        if index < len(self.running) and self.running[index] is seq:
            del self.running[index]

    def hide(self, seq: Sequence) -> None:
        """It runs, waits and answers to its request id no more."""
        self.remove_running(seq)
        self.queue.discard(seq)
        if self.by_request.get(seq.request.request_id) is seq:
            del self.by_request[seq.request.request_id]

    def remove(self, seq: Sequence) -> None:
        """It has ended."""
        self.hide(seq)
        self.reads.pop(seq.read_id, None)
        del self.by_id[seq.id]

    @property
    def num_seats_taken(self) -> int:
        """Sequences that run or read; a cancelled read keeps its seat until it has ended."""
        return len(self.running) + len(self.reads)

    def num_in(self, *states: State) -> int:
        """How many are in one of these states, O(sequences)."""
        counts = Counter(seq.state for seq in self.by_id.values())
        return sum(counts[state] for state in states)

    def check(self) -> None:
        """The indexes agree with the sequences' states. Raises LedgerError."""
        for seq in self.by_id.values():
            if seq.state in ENDED:
                raise LedgerError(f"{seq} is still listed")
            index = bisect_left(self.running, seq.key, key=_KEY)
            listed = index < len(self.running) and self.running[index] is seq
            if listed != (seq.state is State.RUNNING) or (seq in self.queue) != (seq.state in QUEUED):
                raise LedgerError(f"{seq} is listed elsewhere than its state says")
            if seq.state is State.READING and self.reads.get(seq.read_id) is not seq:
                raise LedgerError(f"{seq} has no read")
        if len(self.running) + len(self.queue) + len(self.reads) > len(self.by_id):
            raise LedgerError("somebody is listed who has ended")
