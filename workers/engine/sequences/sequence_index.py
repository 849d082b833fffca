"""All sequences that have not ended, by id, by request id and by urgency. Each sequence has its state itself."""

from __future__ import annotations

from baton_serve.workers.engine.errors import LedgerError
from baton_serve.workers.engine.sequences.by_urgency import ByUrgency
from baton_serve.workers.engine.sequences.sequence import Sequence
from baton_serve.workers.engine.sequences.sequence_state import ENDED, QUEUED, State


class SequenceIndex:
    """The last sequence of ``running`` is preempted first. Sequences in ``queue`` and in ``awaiting_handoff`` wait for
    a slot. ``reads`` and ``closing_reads`` map read ids to sequences; the reads in ``closing_reads`` were cancelled or
    given up and have not ended. Of these lists a CLOSING sequence can only be in ``closing_reads``, and it is not found
    by its request id.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Sequence] = {}
        self.by_request: dict[str, Sequence] = {}
        self.queue = ByUrgency()
        self.awaiting_handoff = ByUrgency()
        self.running = ByUrgency()
        self.reads: dict[int, Sequence] = {}
        self.closing_reads: dict[int, Sequence] = {}

    def add(self, seq: Sequence) -> None:
        """List a new sequence, in the queue for its state."""
        self.by_id[seq.id] = seq
        self.by_request[seq.request.request_id] = seq
        if seq.state in QUEUED:
            self.queue.add(seq)
        elif seq.state is State.AWAITING_HANDOFF:
            self.awaiting_handoff.add(seq)

    def hide(self, seq: Sequence) -> None:
        """Remove a sequence from ``running``, from the queues and from its request id."""
        for part in (self.running, self.queue, self.awaiting_handoff):
            part.discard(seq)
        if self.by_request.get(seq.request.request_id) is seq:
            del self.by_request[seq.request.request_id]

    def remove(self, seq: Sequence) -> None:
        self.hide(seq)
        self.reads.pop(seq.read_id, None)
        self.closing_reads.pop(seq.read_id, None)
        del self.by_id[seq.id]

    def close_read(self, seq: Sequence) -> None:
        """Hide a sequence whose read was cancelled or given up, and free its slot. The sequence keeps its blocks."""
        self.hide(seq)
        self.closing_reads[seq.read_id] = self.reads.pop(seq.read_id)

    def read_of(self, read_id: int) -> Sequence | None:
        """The sequence of a read that has not ended, CLOSING or not."""
        return self.reads.get(read_id) or self.closing_reads.get(read_id)

    @property
    def num_slots_taken(self) -> int:
        """The number of sequences that run or read.

        A CLOSING sequence takes no slot, however long its read lasts; its blocks are counted as pinned. If it took one,
        reads from a P that hangs would take all slots of an engine whose reported load is idle.
        """
        return len(self.running) + len(self.reads)

    @property
    def num_waiting(self) -> int:
        """The number of sequences that wait for a slot, for blocks or for a handshake. O(sequences)."""
        num_connecting = sum(seq.state is State.CONNECTING for seq in self.by_id.values())
        return len(self.queue) + len(self.awaiting_handoff) + num_connecting

    def check(self) -> None:
        """Raise LedgerError unless the indexes agree with the sequences' states."""
        for seq in self.by_id.values():
            if seq.state in ENDED:
                raise LedgerError(f"{seq} is still listed")
            listed = seq in self.running, seq in self.queue, seq in self.awaiting_handoff
            if listed != (seq.state is State.RUNNING, seq.state in QUEUED, seq.state is State.AWAITING_HANDOFF):
                raise LedgerError(f"{seq} is listed elsewhere than its state says")
            if (self.reads.get(seq.read_id) is seq) != (seq.state is State.READING):
                raise LedgerError(f"{seq} is READING without a read, or has a read without being READING")
            if seq.read_id in self.closing_reads and seq.state is not State.CLOSING:
                raise LedgerError(f"{seq} is listed with a read that was cancelled or given up")
            if seq.is_overdue and seq.read_id not in self.closing_reads:
                raise LedgerError(f"{seq} is overdue, but its read was not cancelled or given up")
        listed_in = (self.running, self.queue, self.awaiting_handoff, self.reads, self.closing_reads)
        if sum(len(part) for part in listed_in) > len(self.by_id):
            raise LedgerError("a sequence that has ended is listed")
