"""Whether the next step is sent before the result of the one under way, so that the ranks need not wait for it.

Only a step goes ahead that decodes one more token of each sequence of a step that decodes as well: the ranks have
sampled the tokens to begin with themselves. All else waits until no step is under way: prompts to compute, as a request
that comes next would wait for them longer, and the lack of blocks, as blocks that a step may write cannot be freed.

A sequence may turn out to have ended with the step under way. Its surplus token is dropped, and its blocks are freed
when the step ahead has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.workers.engine.sequences.sequence_state import State

if TYPE_CHECKING:
    from baton_serve.workers.engine.scheduling.scheduler_state import SchedulerState
    from baton_serve.workers.engine.scheduling.step_plan import StepPlan


def can_go_ahead(scheduler_state: SchedulerState, under_way: StepPlan) -> bool:
    """Whether a step of all running sequences that do not end with ``under_way``, the only step, may be sent now."""
    if not under_way.only_decodes or _could_start(scheduler_state):
        return False
    going_on = [seq for seq in scheduler_state.sequences.running if not seq.ends_under_way]
    num_blocks = sum(seq.needs_block for seq in going_on)
    return (
        bool(going_on) and all(seq.is_decoding for seq in going_on) and num_blocks <= scheduler_state.pool.num_available
    )


def _could_start(scheduler_state: SchedulerState) -> bool:
    """Whether a sequence in the queue could start if no step were under way. One that reads would have begun to."""
    sequences = scheduler_state.sequences
    head = sequences.queue.peek()
    if head is None or head.state is State.CONNECTED:
        return False
    return sequences.num_slots_taken < scheduler_state.config.max_num_seqs and scheduler_state.has_room(head)
