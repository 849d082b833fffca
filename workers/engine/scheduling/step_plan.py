"""Fills a step: one token for every decoding sequence, then prompt chunks, within the step's token budget. Keeps the
steps that were sent.
"""

from __future__ import annotations

from collections import deque

from baton_serve.core.protocol.steps import NewSequence, Row, Step
from baton_serve.workers.engine.errors import RankProtocolError
from baton_serve.workers.engine.scheduling.scheduler_state import SchedulerState
from baton_serve.workers.engine.sequences.sequence import Sequence
from baton_serve.workers.engine.sequences.sequence_state import State


class StepPlan:
    """A step that is being built. ``entries`` pairs each row with its sequence, in the order of the rows."""

    def __init__(self, budget_tokens: int) -> None:
        self.budget = budget_tokens
        self.entries: list[tuple[Sequence, Row]] = []
        self.num_decode_rows = 0
        self._started: list[NewSequence] = []
        self._fresh: dict[int, int] = {}

    @property
    def only_decodes(self) -> bool:
        """Whether there are rows, and each of them computes one token and samples the next."""
        return bool(self.entries) and all(row.sample and row.num_tokens == 1 for _, row in self.entries)

    def add_fresh(self, block: int, version: int) -> None:
        """Add a block that the step overwrites. If it was allocated twice during planning, its last version counts."""
        self._fresh[block] = version

    def add_row(self, seq: Sequence, new_blocks: list[int]) -> None:
        """Add a row with as many tokens of ``seq`` as the budget allows. At least one must be left to compute."""
        remaining = len(seq.tokens) - seq.num_computed
        num_tokens = min(remaining, self.budget)
        self.budget -= num_tokens
        if not seq.on_rank:
            self._started.append(_introduce(seq))
            seq.on_rank = True
            new_blocks = []
        start, samples = seq.num_computed + seq.num_under_way, num_tokens == remaining and seq.samples
        scored = None if seq.is_scored else seq.scored_by(start, start + num_tokens)
        row = Row(seq.id, start, num_tokens, new_blocks, samples, scored.start if scored else 0)
        self.entries.append((seq, row))

    def to_step(self, step_id: int, dropped: list[int], *, even_empty: bool = False) -> Step | None:
        """The message; None if it would be empty and ``even_empty`` is not set."""
        if not (self.entries or dropped or self._fresh or even_empty):
            return None
        rows = [row for _, row in self.entries]
        return Step(step_id, list(self._fresh.items()), dropped, self._started, rows)


def _introduce(seq: Sequence) -> NewSequence:
    request = seq.request
    outputs = seq.tokens[seq.num_prompt :]
    what = (request.prompt_token_ids, outputs, request.sampling, list(seq.blocks))
    return NewSequence(seq.id, *what, request.grammar, request.adapter)


def continue_running(scheduler_state: SchedulerState, plan: StepPlan) -> bool:
    """Add rows for the running sequences, most urgent first: those that decode, then those still in prefill.

    Sequences that are sure to end with a step under way are left out; the others must all decode if there is a step.
    Returns True if a sequence was preempted; then no sequence should be admitted into the blocks that this freed.
    """
    preemptions_before = scheduler_state.counters.preemptions
    prefilling: list[Sequence] = []
    for seq in scheduler_state.sequences.running:
        # A sequence before this one may have preempted it.
        if seq.state is not State.RUNNING or seq.ends_under_way:
            continue
        if seq.is_decoding:
            _decode(scheduler_state, plan, seq)
        else:
            prefilling.append(seq)
    plan.num_decode_rows = len(plan.entries)
    for seq in prefilling:
        # All blocks of a prompt were allocated on admission.
        if seq.state is State.RUNNING and plan.budget > 0:
            plan.add_row(seq, [])
    return scheduler_state.counters.preemptions > preemptions_before


def _decode(scheduler_state: SchedulerState, plan: StepPlan, seq: Sequence) -> None:
    new_blocks: list[int] = []
    if seq.needs_block:
        block = scheduler_state.append_block(seq)
        if block is None:
            return
        plan.add_fresh(block, scheduler_state.pool.version_of(block))
        new_blocks = [block]
    plan.add_row(seq, new_blocks)


class StepsUnderWay:
    """The steps that the ranks have and whose results have not come, with their plans: at most two, oldest first, which
    the ranks execute in order. Counts for each sequence the steps that have a row of it.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[Step, StepPlan]] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def lone(self) -> int | None:
        """The id of the only step; None if there are none or two."""
        return self._steps[0][0].step_id if len(self._steps) == 1 else None

    @property
    def last(self) -> StepPlan:
        """The plan of the youngest step. There must be one."""
        return self._steps[-1][1]

    def add(self, step: Step, plan: StepPlan) -> None:
        """The step is sent to the ranks."""
        self._steps.append((step, plan))
        for seq, _ in plan.entries:
            seq.num_under_way += 1

    def first(self, step_id: int) -> StepPlan:
        """The plan of the oldest step, whose id this has to be. Raises RankProtocolError if it is not."""
        if not self._steps or self._steps[0][0].step_id != step_id:
            raise RankProtocolError(f"result of step {step_id}, which is not under way")
        return self._steps[0][1]

    def end_first(self) -> None:
        """The oldest step has ended. There must be one."""
        _, plan = self._steps.popleft()
        for seq, _ in plan.entries:
            seq.num_under_way -= 1
