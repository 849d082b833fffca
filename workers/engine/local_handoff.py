"""D on P's own engine: the blocks are here already, so a lease becomes a running sequence and nothing is read.

It needs a seat and not one block, and gets it before anybody in the queue: who waits there may wait for exactly the
blocks that these leases hold. Reading them into blocks of their own could take more than the cache has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.engine.sequence_state import Event

if TYPE_CHECKING:
    from workers.engine.scheduler_state import SchedulerState
    from workers.engine.sequence import Sequence


class LocalHandoff:
    """Seats the parked sequences of one engine."""

    def __init__(self, board: SchedulerState) -> None:
        self._board = board
        self._read: list[str] = []

    def seat(self) -> bool:
        """Let parked sequences run, most urgent first, while there are seats; True if one does now.

        One whose lease has ended, or holds something else than its parameters say, computes its prompt as if there had
        been no P; the prefix cache may still have most of it. Such a lease has nothing left to be kept for.
        """
        roster = self._board.roster
        seated = False
        while (seq := roster.parked.peek()) is not None:
            if not self._fits(seq):
                self._compute_instead(seq)
            elif roster.num_seats_taken < self._board.config.max_num_seqs:
                self._run(seq)
                seated = True
            else:
                break
        return seated

    def drain(self) -> list[str]:
        """Leases that ended here since the last call, as read: their keeper has to know."""
        leases, self._read = self._read, []
        return leases

    def _fits(self, seq: Sequence) -> bool:
        """The lease holds what the parameters promise, and there is nothing left to compute of that."""
        remote = seq.request.remote
        assert remote is not None  # only such sequences are parked
        grant = self._board.grants.get(remote.lease_id)
        if grant is None or remote.first_token < 0:
            return False
        blocks = remote.remote_block_ids[0]
        return (
            grant.token_ids == seq.tokens[: seq.num_prefilled]
            and blocks == self._board.pool.blocks_of(remote.lease_id)
            and remote.block_versions == [self._board.pool.version_of(block) for block in blocks]
        )

    def _run(self, seq: Sequence) -> None:
        board = self._board
        board.roster.parked.pop()
        seq.advance(Event.TAKE_OVER)
        seq.blocks = board.take_over(self._note_read(seq))
        seq.num_computed = seq.num_prefilled
        seq.num_cached = 0
        board.name_computed(seq)
        board.roster.add_running(seq)

    def _compute_instead(self, seq: Sequence) -> None:
        board = self._board
        board.roster.parked.pop()
        seq.advance(Event.LOSE)
        if board.end_lease(self._lease_of(seq)):
            self._note_read(seq)
        board.counters.local_prefills += 1
        board.roster.queue.push(seq)

    def _note_read(self, seq: Sequence) -> str:
        lease_id = self._lease_of(seq)
        self._read.append(lease_id)
        return lease_id

    def _lease_of(self, seq: Sequence) -> str:
        remote = seq.request.remote
        assert remote is not None
        return remote.lease_id
