"""What records the work of a step to replay it, and what computes steps by such recordings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from baton_serve.workers.rank.cache.batch import BatchRow

#: Does on the device what it did when it was recorded, with what is in the same tensors now.
Replay = Callable[[], None]


class RecordError(RuntimeError):
    """The work cannot be recorded. It is raised on all ranks at once, or there is only one."""


class Recorder(Protocol):
    """Records ``work``, which reads and writes tensors that outlive it.

    It may run the work any number of times. Recordings are replayed one at a time, as they share memory.
    """

    @property
    def is_quick(self) -> bool:
        """Whether a step can wait for its recording, which takes some milliseconds for each layer.

        What is recorded is then not the work's programs but its calls, and has to be tried with other numbers.
        """

    def __call__(self, work: Callable[[], None]) -> Replay: ...


class StepGraphs(Protocol):
    """Graphs for steps of some kind."""

    def fits(self, rows: Sequence[BatchRow]) -> bool:
        """Whether there is a graph for a step of these rows."""

    def run(self, rows: Sequence[BatchRow], token_ids: Sequence[int]) -> torch.Tensor:
        """Compute a step that fits; returns the logits ``[row, vocabulary]`` of the last token of each row, which the
        next step overwrites. ``token_ids``: those of all rows, one row after the other.
        """
