"""Records work on a CPU as a function that makes the same calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from workers.rank.graphs.straight_line import function_of
from workers.rank.graphs.tape import Tape
from workers.rank.native.program import listening

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.rank.graphs.port import Replay


class CpuRecorder:
    """A ``Recorder``. What a step calls hardly takes longer while it is written down."""

    is_quick = True

    def __call__(self, work: Callable[[], None]) -> Replay:
        """Raises RecordError if the work asks for the numbers in a tensor."""
        tape = Tape()
        with torch.inference_mode(), tape, listening(tape.add_program):
            work()
        function = function_of(tape.calls)

        def replay() -> None:
            with torch.inference_mode():
                function()

        return replay
