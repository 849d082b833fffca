"""D's reads: posted with blocks of their own, and those blocks kept until the read has ended, wanted or not.

A read that the fence refused is worth what comes before its first bad block: those blocks hold what P promised, and
what comes after is computed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.protocol.steps import CancelRead, Read
from workers.engine.api import EngineError, ReadFailedError
from workers.engine.errors import RankProtocolError
from workers.engine.sequence_state import Event, State

if TYPE_CHECKING:
    from core.protocol.steps import ReadResult
    from workers.engine.scheduler_state import SchedulerState
    from workers.engine.sequence import Sequence

#: What ``ReadResult.outcome`` may say; anything else counts as failed.
_OUTCOMES = frozenset({"done", "stale", "failed", "cancelled"})


class BlockReads:
    """Posts, cancels and settles the reads of one engine."""

    def __init__(self, board: SchedulerState) -> None:
        self._board = board
        self._next_read_id = 1

    def post(self, seq: Sequence, fresh: list[int]) -> Read:
        """The command that fills a placed sequence's blocks, those found in the prefix cache excepted."""
        remote = seq.request.remote
        assert remote is not None  # only such sequences are CONNECTED
        seq.advance(Event.POST_READ)
        seq.read_id = self._next_read_id
        self._next_read_id += 1
        self._board.roster.reads[seq.read_id] = seq
        held = seq.num_named
        blocks = remote.remote_block_ids[0]
        return Read(
            read_id=seq.read_id,
            engine_id=remote.remote_engine_id,
            lease_id=remote.lease_id,
            remote_block_ids=blocks[held:],
            local_block_ids=seq.blocks[held : len(blocks)],
            versions=remote.block_versions[held:],
            fresh=[(block, self._board.pool.version_of(block)) for block in fresh],
        )

    def cancel(self, seq: Sequence) -> CancelRead:
        """Nobody wants it; its blocks stay until the result comes."""
        seq.advance(Event.ABORT_BUSY)
        self._board.roster.close_read(seq)
        return CancelRead(seq.read_id)

    def give_up(self, read_id: int, reason: str) -> tuple[int, EngineError] | None:
        """The error its caller gets now; None if nobody waits for it. Its blocks stay until the result comes."""
        seq = self._board.roster.reads.get(read_id)
        if seq is None:
            return None
        seq.advance(Event.GIVE_UP)
        seq.is_given_up = True
        self._board.roster.close_read(seq)
        return seq.id, ReadFailedError(reason)

    def note_overdue(self, read_id: int) -> None:
        """The read has not ended in time, wanted or not."""
        seq = self._board.roster.read_of(read_id)
        if seq is not None:
            seq.is_overdue = True

    def settle(self, result: ReadResult) -> tuple[int, EngineError] | None:
        """Go on after a read; the error its caller gets if it failed. Raises RankProtocolError if it is unknown."""
        seq = self._board.roster.read_of(result.read_id)
        if seq is None:
            raise RankProtocolError(f"result of read {result.read_id}, which is not under way")
        outcome = result.outcome if result.outcome in _OUTCOMES else "failed"
        self._count(outcome, result)
        if seq.state is State.CLOSING:
            self._board.leave(seq, Event.FAIL if seq.is_given_up else Event.SETTLE)
            return None
        if outcome == "done":
            self._go_on(seq)
        elif outcome == "stale":
            self._compute_rest(seq, set(result.stale_blocks))
        else:
            self._board.leave(seq, Event.FAIL)
            return seq.id, ReadFailedError(result.error or f"the read of P's blocks ended as {result.outcome!r}")
        return None

    def _count(self, outcome: str, result: ReadResult) -> None:
        counters = self._board.counters
        counters.reads[outcome] += 1
        counters.read_bytes += result.num_bytes
        counters.read_seconds += result.seconds
        counters.read_descriptors += result.num_descriptors
        if outcome == "stale":
            counters.fence_rejections += 1

    def _go_on(self, seq: Sequence) -> None:
        """What P had is computed, except for its last token if that has to be sampled after here."""
        seq.num_computed = min(seq.num_prefilled, len(seq.tokens) - 1)
        self._board.name_computed(seq)
        self._run(seq, Event.READ_DONE)

    def _compute_rest(self, seq: Sequence, stale: set[int]) -> None:
        """Keep what comes before the first stale block; the others are the sequence's own to compute into.

        The stale block holds at least one of the tokens, so there is always one left to compute.
        """
        size, held = self._board.config.block_size, seq.num_named
        num_blocks = -(-seq.num_prefilled // size)
        read = {block: index for index, block in enumerate(seq.blocks[:num_blocks]) if index >= held}
        # Who names none, or others than were read, is not trusted with any.
        is_exact = stale and stale <= read.keys()
        first_bad = min(read[block] for block in stale) if is_exact else held
        seq.num_computed = first_bad * size
        self._board.name_computed(seq)
        self._board.counters.local_prefills += 1
        self._board.counters.stale_kept_tokens += (first_bad - held) * size
        self._run(seq, Event.READ_STALE)

    def _run(self, seq: Sequence, event: Event) -> None:
        seq.advance(event)
        del self._board.roster.reads[seq.read_id]
        self._board.roster.add_running(seq)
