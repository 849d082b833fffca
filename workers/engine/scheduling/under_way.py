"""The steps that the ranks have and whose results have not come: at most two, which the ranks execute in order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from baton_serve.workers.engine.errors import RankProtocolError

if TYPE_CHECKING:
    from baton_serve.core.protocol.steps import Step
    from baton_serve.workers.engine.scheduling.step_plan import StepPlan


class StepsUnderWay:
    """Steps with their plans, oldest first. Counts for each sequence the steps that have a row of it."""

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
