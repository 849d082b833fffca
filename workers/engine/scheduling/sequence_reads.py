"""D's reads of P's blocks. The blocks that a read writes stay out of use until it has ended, even if it was cancelled.

When the fence refuses a read, the blocks before the first stale one are valid: P had not overwritten them. The rest is
computed here.
"""

from __future__ import annotations

from baton_serve.core.protocol.steps import CancelRead, Read, ReadResult
from baton_serve.workers.engine.api import EngineError, ReadFailedError
from baton_serve.workers.engine.errors import RankProtocolError
from baton_serve.workers.engine.scheduling.scheduler_state import SchedulerState
from baton_serve.workers.engine.sequences.sequence import Sequence
from baton_serve.workers.engine.sequences.sequence_state import Event, State


class SequenceReads:
    """Starts, cancels and finishes the reads of one engine."""

    def __init__(self, scheduler_state: SchedulerState) -> None:
        self._scheduler_state = scheduler_state
        self._next_read_id = 1

    def post(self, seq: Sequence, fresh: list[int]) -> Read:
        """The command that reads a sequence's blocks, except those found in the prefix cache.

        ``fresh``: the blocks that were newly allocated for the sequence.
        """
        seq.advance(Event.POST_READ)
        seq.read_id = self._next_read_id
        self._next_read_id += 1
        self._scheduler_state.sequences.reads[seq.read_id] = seq
        held, remote = seq.num_registered, seq.remote
        blocks = remote.remote_block_ids[0]
        return Read(
            read_id=seq.read_id,
            engine_id=remote.remote_engine_id,
            lease_id=remote.lease_id,
            remote_block_ids=blocks[held:],
            local_block_ids=seq.blocks[held : len(blocks)],
            promise=remote.promise,
            fresh=[(block, self._scheduler_state.pool.version_of(block)) for block in fresh],
        )

    def cancel(self, seq: Sequence) -> CancelRead:
        """Cancel the read of an aborted sequence, which keeps its blocks until the read's result comes."""
        seq.advance(Event.ABORT_BUSY)
        self._scheduler_state.sequences.close_read(seq)
        return CancelRead(seq.read_id)

    def give_up(self, read_id: int, reason: str) -> tuple[int, EngineError] | None:
        """Fail the read's sequence now; returns its id and error, or None if the read was cancelled or given up before.

        The sequence keeps its blocks until the read's result comes.
        """
        seq = self._scheduler_state.sequences.reads.get(read_id)
        if seq is None:
            return None
        seq.advance(Event.GIVE_UP)
        seq.is_given_up = True
        self._scheduler_state.sequences.close_read(seq)
        return seq.id, ReadFailedError(reason)

    def settle(self, result: ReadResult) -> tuple[int, EngineError] | None:
        """Handle the end of a read: continue its sequence, or end it and return its id and error.

        Raises RankProtocolError if the read is unknown.
        """
        seq = self._scheduler_state.sequences.read_of(result.read_id)
        if seq is None:
            raise RankProtocolError(f"result of read {result.read_id}, which is not under way")
        self._count(result)
        if seq.state is State.CLOSING:
            self._scheduler_state.end_sequence(seq, Event.FAIL if seq.is_given_up else Event.SETTLE)
            return None
        if result.outcome == "done":
            # All tokens that P computed count as computed; the last not if D must sample after it.
            seq.num_computed = min(seq.num_prefilled, len(seq.tokens) - 1)
            self._scheduler_state.register_computed(seq)
            self._run(seq, Event.READ_DONE)
        elif result.outcome == "stale":
            self._compute_rest(seq, set(result.stale_blocks))
        else:
            self._scheduler_state.end_sequence(seq, Event.FAIL)
            return seq.id, ReadFailedError(result.error)
        return None

    def _count(self, result: ReadResult) -> None:
        counters = self._scheduler_state.counters
        counters.reads[result.outcome] += 1
        counters.read_bytes += result.num_bytes
        counters.read_seconds += result.seconds
        counters.read_descriptors += result.num_descriptors
        if result.outcome == "stale":
            counters.fence_rejections += 1

    def _compute_rest(self, seq: Sequence, stale: set[int]) -> None:
        """Keep the blocks before the first stale one, and compute the rest into the sequence's own blocks.

        A stale block holds at least one of the tokens, so at least one is left to compute.
        """
        size, held = self._scheduler_state.config.block_size, seq.num_registered
        num_blocks = -(-seq.num_prefilled // size)
        read = {block: index for index, block in enumerate(seq.blocks[:num_blocks]) if index >= held}
        # Unless the rank names stale blocks, all of which were part of the read, no block of the read is kept.
        is_exact = stale and stale <= read.keys()
        first_bad = min(read[block] for block in stale) if is_exact else held
        seq.num_computed = first_bad * size
        self._scheduler_state.register_computed(seq)
        self._scheduler_state.counters.local_prefills += 1
        self._scheduler_state.counters.stale_kept_tokens += (first_bad - held) * size
        self._run(seq, Event.READ_STALE)

    def _run(self, seq: Sequence, event: Event) -> None:
        seq.advance(event)
        del self._scheduler_state.sequences.reads[seq.read_id]
        self._scheduler_state.sequences.running.add(seq)
