"""What runs when. Pure: it is told what happened, and answers with messages for the ranks and outputs for callers.

One step is under way at a time; reads go beside it. Every method leaves the scheduler as it was when it raises.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from core.protocol.steps import CancelRead, Read, Step
from core.protocol.worker import WorkerLoad
from workers.engine.api import QueueFullError, ReadFailedError
from workers.engine.block_pool import BlockPool
from workers.engine.block_reads import BlockReads
from workers.engine.errors import RankProtocolError
from workers.engine.local_handoff import LocalHandoff
from workers.engine.scheduler_state import SchedulerState
from workers.engine.sequence import Sequence
from workers.engine.sequence_state import WAITING, Event, State
from workers.engine.step_outcome import Output, apply_rows
from workers.engine.step_plan import StepPlan, continue_running
from workers.engine.validation import check_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.protocol.handoff import KVTransferParams
    from core.protocol.steps import ReadResult, StepResult
    from workers.engine.api import EngineRequest
    from workers.engine.config import EngineConfig

Command = CancelRead | Read | Step


def random_lease_id() -> str:
    """32 hex digits nobody can guess."""
    return secrets.token_hex(16)


class Scheduler:
    """The pure core of an engine. ``version_base``: see ``BlockPool``; ``is_connected``: see ``ports.Connector``."""

    def __init__(
        self,
        config: EngineConfig,
        version_base: int,
        new_lease_id: Callable[[], str] = random_lease_id,
        is_connected: Callable[[str], bool] = lambda engine_id: True,
    ) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.block_size, version_base)
        self.board = SchedulerState(config, self.pool)
        self.counters = self.board.counters
        self._roster = self.board.roster
        self._reads = BlockReads(self.board)
        self._take_overs = LocalHandoff(self.board)
        self._new_lease_id = new_lease_id
        self._is_connected = is_connected
        self._next_seq_id = 1
        self._next_step_id = 1
        self._step: Step | None = None
        self._plan = StepPlan(0)
        #: The ranks shall answer something, if only that they can.
        self._is_probe_due = False
        self._cancels: dict[int, CancelRead] = {}
        self._disconnected: list[tuple[int, KVTransferParams]] = []

    def __repr__(self) -> str:
        return f"<Scheduler {len(self._roster.by_id)} sequences, step={self._step is not None}, {self.pool.stats()}>"

    # --- sequences ----------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> int:
        """Queue a request; its sequence id. One with ``remote`` waits for ``connected``, unless we are that engine.

        What ``current`` finds under its request id is aborted: whoever asks again reads that answer no more, even if
        nobody has noticed yet. Nothing is waited for: what may still be written stays out of use beside the new one.
        Raises RefusedError.
        """
        check_request(request, self.config)
        older = self._roster.by_request.get(request.request_id)
        num_waiting = self._roster.num_waiting - (older is not None and older.state in WAITING)
        if num_waiting >= self.config.max_waiting:
            raise QueueFullError(f"{self.config.max_waiting} sequences wait on this worker already")
        if older is not None:
            self._abort(older)
        config = self.config
        seq = Sequence(self._next_seq_id, request, config.block_size, config.max_total_tokens, config.engine_id)
        self._next_seq_id += 1
        self._roster.add(seq)
        return seq.id

    def connected(self, seq_id: int) -> None:
        """P is known now; the sequence waits for its turn to read. Nothing happens if it has been aborted."""
        seq = self._roster.by_id.get(seq_id)
        if seq is not None:
            seq.advance(Event.CONNECT)
            self._roster.queue.push(seq)

    def connect_failed(self, seq_id: int, reason: str) -> Output | None:
        """P cannot be reached; what the caller gets. None if the sequence has been aborted."""
        seq = self._roster.by_id.get(seq_id)
        if seq is None:
            return None
        self.board.leave(seq, Event.FAIL)
        return seq_id, ReadFailedError(reason)

    def current(self, request_id: str) -> int | None:
        """The id of the request's sequence, which is the one that was asked for last; None if it ends or has ended."""
        seq = self._roster.by_request.get(request_id)
        return None if seq is None else seq.id

    def abort(self, request_id: str) -> int | None:
        """End the request's sequence wherever it is; its id, or None. What nobody writes any more is free at once."""
        seq = self._roster.by_request.get(request_id)
        if seq is None:
            return None
        self._abort(seq)
        return seq.id

    def _abort(self, seq: Sequence) -> None:
        if seq.state is State.READING:
            self._cancels[seq.read_id] = self._reads.cancel(seq)
        elif any(entry is seq for entry, _ in self._plan.entries):
            self._roster.hide(seq)
            seq.advance(Event.ABORT_BUSY)
        else:
            self.board.leave(seq, Event.ABORT)

    def requests_with(self, suffix: str) -> list[str]:
        """The request ids that end with ``suffix`` and that ``abort`` would find. O(sequences)."""
        return [request_id for request_id in self._roster.by_request if request_id.endswith(suffix)]

    # --- steps and reads ----------------------------------------------------------------------------------------

    def schedule(self) -> list[Command]:
        """What to send to the ranks now, in order. Call it after anything has happened, then ``drain_disconnected``."""
        commands: list[Command] = [*self._cancels.values()]
        self._cancels.clear()
        is_free = self._step is None
        plan = StepPlan(self.config.max_num_batched_tokens if is_free else 0)
        self._take_overs.seat()
        preempted = is_free and self._continue(plan)
        if not preempted:
            self._admit(plan, commands)
        if is_free:
            self._close(plan, commands)
        return commands

    def _continue(self, plan: StepPlan) -> bool:
        """Rows for who runs; True if somebody was preempted for them."""
        preempted = continue_running(self.board, plan)
        # Who ran alone may have preempted itself: then its seat and its blocks are for others, now, or nothing moves.
        while not plan.entries and self._take_overs.seat():
            preempted = continue_running(self.board, plan)
        return preempted and bool(plan.entries)

    def _admit(self, plan: StepPlan, commands: list[Command]) -> None:
        """In order of urgency until one has no room: who has to wait is not overtaken."""
        queue = self._roster.queue
        while self._roster.num_seats_taken < self.config.max_num_seqs:
            seq = queue.peek()
            if seq is None or (seq.state is not State.CONNECTED and plan.budget == 0):
                return
            if seq.state is State.CONNECTED and not self._can_read(seq):
                continue
            fresh = self.board.place(seq)
            if fresh is None:
                return
            queue.pop()
            if seq.state is State.CONNECTED:
                commands.append(self._reads.post(seq, fresh))
            else:
                self._start(plan, seq, fresh)

    def _can_read(self, seq: Sequence) -> bool:
        """Otherwise it makes way, without having taken anything: whoever meets its P again hears the reason."""
        remote = seq.request.remote
        assert remote is not None  # only such sequences are CONNECTED
        if self._is_connected(remote.remote_engine_id):
            return True
        seq.advance(Event.DISCONNECT)
        self._roster.queue.pop()
        self._disconnected.append((seq.id, remote))
        return False

    def drain_disconnected(self) -> list[tuple[int, KVTransferParams]]:
        """Sequences that ``schedule`` has found without a connection since the last call, and where their P is.

        Each is CONNECTING: try again, and tell ``connected`` or ``connect_failed``.
        """
        disconnected, self._disconnected = self._disconnected, []
        return disconnected

    def _start(self, plan: StepPlan, seq: Sequence, fresh: list[int]) -> None:
        seq.advance(Event.ADMIT)
        # The ranks may know it from before it was preempted; they are told everything again.
        seq.on_rank = False
        self._roster.add_running(seq)
        for block in fresh:
            plan.add_fresh(block, self.pool.version_of(block))
        plan.add_row(seq, [])

    def _close(self, plan: StepPlan, commands: list[Command]) -> None:
        step = plan.to_step(self._next_step_id, list(self.board.forgotten), even_empty=self._is_probe_due)
        if step is None:
            return
        self._is_probe_due = False
        self.board.forgotten.clear()
        self._next_step_id += 1
        self._step, self._plan = step, plan
        commands.append(step)

    def apply_step(self, result: StepResult) -> list[Output]:
        """A step is over. Raises RankProtocolError if it is not the one under way, or its samples do not fit."""
        if self._step is None or result.step_id != self._step.step_id:
            raise RankProtocolError(f"result of step {result.step_id}, which is not under way")
        plan = self._plan
        outputs = apply_rows(self.board, plan.entries, result, self._new_lease_id)
        self._step, self._plan = None, StepPlan(0)
        self._count(plan, result)
        return outputs

    def _count(self, plan: StepPlan, result: StepResult) -> None:
        if not plan.entries:
            return
        counters = self.counters
        counters.steps += 1
        counters.step_seconds += result.seconds
        counters.decode_tokens += plan.num_decode_rows
        counters.prefill_tokens += sum(row.num_tokens for _, row in plan.entries[plan.num_decode_rows :])

    def apply_read(self, result: ReadResult) -> Output | None:
        """A read is over; what the caller gets if it failed. Raises RankProtocolError if it is unknown."""
        failure = self._reads.settle(result)
        # A read that has ended needs no cancelling. One that crosses its result on the wire the ranks ignore.
        self._cancels.pop(result.read_id, None)
        return failure

    def fail_read(self, read_id: int, error: str) -> Output | None:
        """The read cannot succeed any more, but has not ended; what its caller gets. None if nobody waits for it."""
        return self._reads.give_up(read_id, error)

    def time_out_read(self, read_id: int) -> Output | None:
        """The read has not ended after ``read_timeout_s``; otherwise as ``fail_read``. Call it once per read.

        A rank of ours that hangs looks the same as a P that does. While no step is under way that would show it, the
        next one is sent even if it is empty.
        """
        self.counters.reads_timed_out += 1
        self._reads.note_overdue(read_id)
        self._is_probe_due = self._step is None
        after = f"after {self.config.read_timeout_s:g} s (read_timeout)"
        return self._reads.give_up(read_id, f"the read of P's blocks has not ended {after}")

    # --- leases -------------------------------------------------------------------------------------------------

    def end_lease(self, lease_id: str) -> bool:
        """Unpin a hand-off's blocks; False if there is no such lease."""
        return self.board.end_lease(lease_id)

    def has_lease(self, lease_id: str) -> bool:
        """It holds blocks."""
        return lease_id in self.board.grants

    def leases_of(self, request_id: str) -> list[str]:
        """The leases granted for the request that still hold blocks, oldest first."""
        return self.board.grants.of(request_id)

    def leases_with(self, suffix: str) -> list[str]:
        """The leases that hold blocks of requests whose id ends with ``suffix``. O(leases)."""
        return self.board.grants.ending_with(suffix)

    def drain_read_leases(self) -> list[str]:
        """Leases that ``schedule`` ended since the last call because this engine itself was their reader."""
        return self._take_overs.drain()

    # --- looking ------------------------------------------------------------------------------------------------

    @property
    def is_starved(self) -> bool:
        """Somebody waits, nothing moves, and only the end of a lease is sure to change that.

        A read that is overdue may never end, so it is no movement; what it holds is out of use.
        """
        roster = self._roster
        if not (len(roster.queue) and self.pool.num_leases):
            return False
        return not (roster.num_seats_taken or self._step or roster.has_closing_read_in_time)

    @property
    def is_quiet(self) -> bool:
        """No lease is left, and no sequence but those that only keep the blocks of a read that is overdue."""
        return not self.pool.num_leases and all(seq.is_overdue for seq in self._roster.by_id.values())

    def load(self, *, draining: bool = False) -> WorkerLoad:
        """How busy it is now. Sequences that close take no seat, so they are counted by their blocks only."""
        stats = self.pool.stats()
        return WorkerLoad(
            running=len(self._roster.running),
            waiting=self._roster.num_waiting,
            reading=len(self._roster.reads),
            free_blocks=stats.free,
            cached_blocks=stats.cached,
            pinned_blocks=stats.pinned,
            leased_blocks=stats.leased,
            leases=stats.leases,
            draining=draining,
        )

    def check(self) -> None:
        """The ledger balances. O(total blocks). Raises LedgerError."""
        self.board.check()
