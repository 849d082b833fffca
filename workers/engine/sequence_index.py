"""Every sequence that has not ended, found by id, by request id, by urgency. The state is the sequence's own."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter
from typing import TYPE_CHECKING

from workers.engine.errors import LedgerError
from workers.engine.sequence_state import ENDED, QUEUED, State
from workers.engine.wait_queue import WaitQueue

if TYPE_CHECKING:
    from workers.engine.sequence import Sequence

_KEY = attrgetter("key")


class SequenceIndex:
    """``running`` is sorted by ``Sequence.key``: its last is preempted first. ``queue`` and ``parked`` wait for a seat.
    ``reads`` and ``closing_reads`` are by read id: those that somebody waits for, and those that were cancelled or
    given up and have not ended. Of all these a sequence that closes is in the last one at most, and unknown by its
    request id.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Sequence] = {}
        self.by_request: dict[str, Sequence] = {}
        self.queue = WaitQueue()
        self.parked = WaitQueue()
        self.running: list[Sequence] = []
        self.reads: dict[int, Sequence] = {}
        self.closing_reads: dict[int, Sequence] = {}

    def add(self, seq: Sequence) -> None:
        """A new sequence; it waits in a queue unless it connects first."""
        self.by_id[seq.id] = seq
        self.by_request[seq.request.request_id] = seq
        if seq.state in QUEUED:
            self.queue.push(seq)
        elif seq.state is State.PARKED:
            self.parked.push(seq)

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
        self.parked.discard(seq)
        if self.by_request.get(seq.request.request_id) is seq:
            del self.by_request[seq.request.request_id]

    def remove(self, seq: Sequence) -> None:
        """It has ended."""
        self.hide(seq)
        self.reads.pop(seq.read_id, None)
        self.closing_reads.pop(seq.read_id, None)
        del self.by_id[seq.id]

    def close_read(self, seq: Sequence) -> None:
        """Nobody waits for its read any more: it is hidden, gives up its seat, and keeps its blocks."""
        self.hide(seq)
        self.closing_reads[seq.read_id] = self.reads.pop(seq.read_id)

    def read_of(self, read_id: int) -> Sequence | None:
        """The sequence whose read has not ended, wanted or not."""
        return self.reads.get(read_id) or self.closing_reads.get(read_id)

    @property
    def has_closing_read_in_time(self) -> bool:
        """A read that nobody waits for may be expected to end soon."""
        return any(not seq.is_overdue for seq in self.closing_reads.values())

    @property
    def num_seats_taken(self) -> int:
        """Sequences that run or read.

        One whose read closes takes none, however long that lasts: what it holds are its blocks, and they count by
        themselves. Otherwise reads from a P that hangs would fill an engine that everybody takes for idle.
        """
        return len(self.running) + len(self.reads)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a seat, for blocks or for a handshake, O(sequences)."""
        num_connecting = sum(seq.state is State.CONNECTING for seq in self.by_id.values())
        return len(self.queue) + len(self.parked) + num_connecting

    def check(self) -> None:
        """The indexes agree with the sequences' states. Raises LedgerError."""
        for seq in self.by_id.values():
            if seq.state in ENDED:
                raise LedgerError(f"{seq} is still listed")
            index = bisect_left(self.running, seq.key, key=_KEY)
            listed = index < len(self.running) and self.running[index] is seq
            if listed != (seq.state is State.RUNNING) or (seq in self.queue) != (seq.state in QUEUED):
                raise LedgerError(f"{seq} is listed elsewhere than its state says")
            if (seq in self.parked) != (seq.state is State.PARKED):
                raise LedgerError(f"{seq} is listed elsewhere than its state says")
            if (self.reads.get(seq.read_id) is seq) != (seq.state is State.READING):
                raise LedgerError(f"{seq} has a read that its state does not know of, or none")
            if seq.read_id in self.closing_reads and seq.state is not State.CLOSING:
                raise LedgerError(f"{seq} still has a read that closes")
            if seq.is_overdue and seq.read_id not in self.closing_reads:
                raise LedgerError(f"{seq} is overdue, and its read does not close")
        listed_in = (self.running, self.queue, self.parked, self.reads, self.closing_reads)
        if sum(len(part) for part in listed_in) > len(self.by_id):
            raise LedgerError("somebody is listed who has ended")
