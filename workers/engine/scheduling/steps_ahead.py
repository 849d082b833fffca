"""Whether the next step is sent before the result of the one under way, so that the ranks need not wait for it.

The engine sends a step ahead only if that step and the one under way both do nothing but decode: the ranks have sampled
the tokens that it begins with. The engine computes prompts only when no step is under way, because a request that comes
next would wait longer for two steps. It frees blocks for others only then too, because a step may be writing them.

A sequence may turn out to have ended with the step under way. Its surplus token is dropped, and its blocks are freed
when the step ahead has ended.
"""

from __future__ import annotations

from baton_serve.workers.engine.scheduling.scheduler_state import SchedulerState
from baton_serve.workers.engine.scheduling.step_plan import StepPlan
from baton_serve.workers.engine.sequences.sequence_state import State


def can_go_ahead(scheduler_state: SchedulerState, under_way: StepPlan) -> bool:
    """Whether the step after ``under_way`` may be sent now: one token of each sequence that ``under_way`` does not end.

    The ranks must have no other step.
    """
    if not under_way.only_decodes or _could_start(scheduler_state):
        return False
    going_on = [seq for seq in scheduler_state.sequences.running if not seq.ends_under_way]
    num_blocks = sum(seq.needs_block for seq in going_on)
    return (
        bool(going_on) and all(seq.is_decoding for seq in going_on) and num_blocks <= scheduler_state.pool.num_available
    )


def _could_start(scheduler_state: SchedulerState) -> bool:
    """Whether a sequence in the queue could start if no step were under way.

    One that is to read blocks does not count: reads begin while steps are under way.
    """
    sequences = scheduler_state.sequences
    head = sequences.queue.first
    if head is None or head.state is State.CONNECTED:
        return False
    return sequences.num_slots_taken < scheduler_state.config.max_num_seqs and scheduler_state.has_room(head)
