"""Records work on a CPU as a function that makes the same calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from baton_serve.workers.rank.graphs.port import RecordError
from baton_serve.workers.rank.graphs.recorders.straight_line import function_of
from baton_serve.workers.rank.graphs.recorders.tape import Tape
from baton_serve.workers.rank.native.program import listening

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_serve.workers.rank.graphs.port import Replay


class CpuRecorder:
    """A ``Recorder``. It takes about 1.6 ms for each layer of a model (docs/cpu.md)."""

    is_quick = True

    def __call__(self, work: Callable[[], None]) -> Replay:
        """Raises RecordError if the work asks for the numbers in a tensor.

        Native programs may be given addresses of tensors that the work makes by torch's operations, and of those that
        outlive the recording. Others, such as those of arrays that it makes by numpy, would be left in it.
        """
        tape = Tape()
        with torch.inference_mode(), _NoNumbers(), tape, listening(tape.add_program):
            work()
        function = function_of(tape.calls)

        def replay() -> None:
            with torch.inference_mode():
                function()

        return replay


class _NoNumbers(TorchFunctionMode):
    """Refuses what hands the numbers of a tensor to Python without an operation."""

    READERS = frozenset({torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__})

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self.READERS:
            raise RecordError(f"{getattr(func, '__name__', func)} reads the numbers in a tensor")
        return func(*args, **(kwargs or {}))
