"""Decides what runs when. Pure: it gets events, and returns messages for the ranks and outputs for callers.

One step is under way at a time, and one that decodes on may be sent ahead of its result (``steps_ahead``); reads run
concurrently with them. A method that raises has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from baton_serve.core.leases.ids import new_id
from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.core.protocol.steps import CancelRead, Read, ReadResult, Step, StepResult
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.workers.engine.api import EngineRequest, QueueFullError, ReadFailedError
from baton_serve.workers.engine.blocks.block_pool import BlockPool
from baton_serve.workers.engine.config import EngineConfig
from baton_serve.workers.engine.scheduling.local_handoff import LocalHandoff
from baton_serve.workers.engine.scheduling.scheduler_state import SchedulerState
from baton_serve.workers.engine.scheduling.sequence_reads import SequenceReads
from baton_serve.workers.engine.scheduling.step_outcome import Output, apply_rows, match, match_scores
from baton_serve.workers.engine.scheduling.step_plan import StepPlan, StepsUnderWay, continue_running
from baton_serve.workers.engine.scheduling.steps_ahead import can_go_ahead
from baton_serve.workers.engine.scheduling.validation import check_request
from baton_serve.workers.engine.sequences.sequence import Sequence
from baton_serve.workers.engine.sequences.sequence_state import WAITING, Event, State

Command = CancelRead | Read | Step


class Scheduler:
    """The pure core of an engine. ``version_base``: see ``BlockPool``; ``is_connected``: see ``ports.Connector``."""

    def __init__(
        self,
        config: EngineConfig,
        version_base: int,
        new_lease_id: Callable[[], str] = new_id,
        is_connected: Callable[[str], bool] = lambda engine_id: True,
    ) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.block_size, version_base)
        self.state = SchedulerState(config, self.pool, new_lease_id)
        self.counters = self.state.counters
        self._sequences = self.state.sequences
        self.reads = SequenceReads(self.state)
        self.local_handoff = LocalHandoff(self.state)
        self._is_connected = is_connected
        self._next_seq_id = 1
        self._next_step_id = 1
        self.under_way = StepsUnderWay()
        #: The next step is sent even if it is empty, to see whether the ranks still answer.
        self._is_probe_due = False
        self._cancels: dict[int, CancelRead] = {}
        self._disconnected: list[tuple[int, KVTransferParams]] = []

    def __repr__(self) -> str:
        return f"<Scheduler {len(self._sequences.by_id)} sequences, {len(self.under_way)} steps, {self.pool.stats()}>"

    # --- sequences ----------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> int:
        """Queue a request; returns its sequence id. A request with ``remote`` waits for ``connected``, unless this
        engine is its P.

        The sequence that ``current`` finds under the same request id is aborted: a router that sends a request again no
        longer reads the first answer. The new sequence does not wait until the old one's blocks are free. Raises
        RefusedError.
        """
        check_request(request, self.config)
        older = self._sequences.by_request.get(request.request_id)
        num_waiting = self._sequences.num_waiting - (older is not None and older.state in WAITING)
        if num_waiting >= self.config.max_waiting:
            raise QueueFullError(f"{self.config.max_waiting} sequences wait on this worker already")
        if older is not None:
            self._abort(older)
        seq = Sequence(self._next_seq_id, request, self.config)
        self._next_seq_id += 1
        self._sequences.add(seq)
        return seq.id

    def connected(self, seq_id: int) -> None:
        """The handshake with P is done: queue the sequence. Does nothing if it has been aborted."""
        seq = self._sequences.by_id.get(seq_id)
        if seq is not None:
            seq.advance(Event.CONNECT)
            self._sequences.queue.add(seq)

    def connect_failed(self, seq_id: int, reason: str) -> Output | None:
        """The handshake failed: end the sequence; returns its id and error, or None if it has been aborted."""
        seq = self._sequences.by_id.get(seq_id)
        if seq is None:
            return None
        self.state.end_sequence(seq, Event.FAIL)
        return seq_id, ReadFailedError(reason)

    def current(self, request_id: str) -> int | None:
        """The id of the request's newest sequence; None if it is CLOSING or has ended."""
        seq = self._sequences.by_request.get(request_id)
        return None if seq is None else seq.id

    def abort(self, request_id: str) -> int | None:
        """End the request's sequence in any state; returns its id, or None if there is none. Its blocks are freed at
        once unless a step or read may still write them.
        """
        seq = self._sequences.by_request.get(request_id)
        if seq is None:
            return None
        self._abort(seq)
        return seq.id

    def _abort(self, seq: Sequence) -> None:
        if seq.state is State.READING:
            self._cancels[seq.read_id] = self.reads.cancel(seq)
        elif seq.num_under_way:
            self._sequences.hide(seq)
            seq.advance(Event.ABORT_BUSY)
        else:
            self.state.end_sequence(seq, Event.ABORT)

    def requests_with(self, suffix: str) -> list[str]:
        """The ids of requests that end with the suffix and that ``abort`` would find. O(sequences)."""
        return [request_id for request_id in self._sequences.by_request if request_id.endswith(suffix)]

    # --- steps and reads ----------------------------------------------------------------------------------------

    def schedule(self) -> list[Command]:
        """The commands to send to the ranks now, in order. Call it after every event, then ``drain_disconnected``."""
        commands: list[Command] = [*self._cancels.values()]
        self._cancels.clear()
        is_free = not self.under_way
        plan = StepPlan(self.config.max_num_batched_tokens if is_free else 0)
        self.local_handoff.admit()
        preempted = is_free and self._continue(plan)
        if not preempted:
            self._admit(plan, commands)
        if is_free:
            self._close(plan, commands)
        return commands

    def schedule_ahead(self) -> list[Command]:
        """The step to send ahead of the result of the only one under way, if there can be one. Call it after
        ``schedule``, when that one is about to end.
        """
        commands: list[Command] = []
        if self.under_way.lone is not None and can_go_ahead(self.state, self.under_way.last):
            plan = StepPlan(self.config.max_num_batched_tokens)
            continue_running(self.state, plan)
            self._close(plan, commands)
        return commands

    def _continue(self, plan: StepPlan) -> bool:
        """Add rows for the running sequences; True if a sequence was preempted for them."""
        preempted = continue_running(self.state, plan)
        # A sequence that ran alone may have preempted itself. Other sequences must get its slot and blocks now: without
        # a step to send, nothing would call ``schedule`` again.
        while not plan.entries and self.local_handoff.admit():
            preempted = continue_running(self.state, plan)
        return preempted and bool(plan.entries)

    def _admit(self, plan: StepPlan, commands: list[Command]) -> None:
        """Admit sequences from the queue, most urgent first, until one does not fit; those behind it have to wait.

        A sequence that would fit and only waits for the next step keeps its slot and blocks, and the reads of those
        behind it begin now if they fit beside it.
        """
        queue = self._sequences.queue
        num_kept = num_kept_blocks = 0
        for seq in queue:
            if self._sequences.num_slots_taken + num_kept >= self.config.max_num_seqs:
                return
            if seq.state is State.CONNECTED:
                if not self._can_read(seq):
                    continue
            elif plan.budget == 0:
                num_kept += 1
                num_kept_blocks += seq.num_blocks_needed
                continue
            fresh = self.state.allocate(seq, num_kept_blocks)
            if fresh is None:
                return
            queue.discard(seq)
            if seq.state is State.CONNECTED:
                commands.append(self.reads.post(seq, fresh))
            else:
                self._start(plan, seq, fresh)

    def _can_read(self, seq: Sequence) -> bool:
        """Whether P can be read from now. If not, the sequence leaves the queue and needs a new handshake."""
        if self._is_connected(seq.remote.remote_engine_id):
            return True
        seq.advance(Event.DISCONNECT)
        self._sequences.queue.discard(seq)
        self._disconnected.append((seq.id, seq.remote))
        return False

    def drain_disconnected(self) -> list[tuple[int, KVTransferParams]]:
        """Sequences whose P ``schedule`` has found disconnected since the last call, with their hand-off parameters.

        Each of these sequences is CONNECTING: do a handshake, and call ``connected`` or ``connect_failed``.
        """
        disconnected, self._disconnected = self._disconnected, []
        return disconnected

    def _start(self, plan: StepPlan, seq: Sequence, fresh: list[int]) -> None:
        seq.advance(Event.ADMIT)
        # The ranks may know the sequence from before a preemption; it is sent to them as new.
        seq.on_rank = False
        self._sequences.running.add(seq)
        for block in fresh:
            plan.add_fresh(block, self.pool.version_of(block))
        plan.add_row(seq, [])

    def _close(self, plan: StepPlan, commands: list[Command]) -> None:
        step = plan.to_step(self._next_step_id, list(self.state.to_drop), even_empty=self._is_probe_due)
        if step is None:
            return
        self._is_probe_due = False
        self.state.to_drop.clear()
        self._next_step_id += 1
        self.under_way.add(step, plan)
        commands.append(step)

    def apply_step(self, result: StepResult) -> list[Output]:
        """Apply the result of the oldest step under way. Raises RankProtocolError if it is of another step, or the
        samples do not fit.
        """
        plan = self.under_way.first(result.step_id)
        samples = match(plan.entries, result, self.config.vocab_size)
        scores = match_scores(plan.entries, result)
        self.under_way.end_first()
        outputs = apply_rows(self.state, plan.entries, samples, scores)
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
        """Apply the result of a read; returns its sequence's id and error if it failed. Raises RankProtocolError if the
        read is unknown.
        """
        failure = self.reads.settle(result)
        # A read that has ended needs no cancelling. The ranks ignore a cancel that crosses the read's result.
        self._cancels.pop(result.read_id, None)
        return failure

    def time_out_read(self, read_id: int) -> Output | None:
        """Do as ``reads.give_up``, for a read that has not ended after ``read_timeout_s``. Call it once per read.

        The cause may be P or a hanging rank of this engine. ``step_timeout_s`` would reveal a hanging rank, so if no
        step is under way, the next step is sent even if it is empty.
        """
        self.counters.reads_timed_out += 1
        seq = self._sequences.read_of(read_id)
        if seq is not None:
            seq.is_overdue = True
        self._is_probe_due = not self.under_way
        after = f"after {self.config.read_timeout_s:g} s (read_timeout)"
        return self.reads.give_up(read_id, f"the read of P's blocks has not ended {after}")

    # --- state --------------------------------------------------------------------------------------------------

    @property
    def is_starved(self) -> bool:
        """Whether sequences wait, no sequence runs or reads, and only the end of a lease is sure to change that.

        An overdue read may never end, so it does not count.
        """
        sequences = self._sequences
        if not (len(sequences.queue) and len(self.pool.leases)):
            return False
        in_time = any(not seq.is_overdue for seq in sequences.closing_reads.values())
        return not (sequences.num_slots_taken or len(self.under_way) or in_time)

    @property
    def is_quiet(self) -> bool:
        """Whether no lease and no sequence is left, except sequences that wait for an overdue read to end."""
        return not len(self.pool.leases) and all(seq.is_overdue for seq in self._sequences.by_id.values())

    def load(self, *, draining: bool = False) -> WorkerLoad:
        """The load now. CLOSING and FINISHING sequences take no slot, so they count by their pinned blocks only."""
        stats = self.pool.stats()
        return WorkerLoad(
            running=len(self._sequences.running),
            waiting=self._sequences.num_waiting,
            reading=len(self._sequences.reads),
            free_blocks=stats.free,
            cached_blocks=stats.cached,
            pinned_blocks=stats.pinned,
            leased_blocks=stats.leased,
            leases=stats.leases,
            draining=draining,
        )
