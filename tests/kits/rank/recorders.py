"""A recorder for tests without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.rank.graphs.port import Recorder, Replay


class PlainRecorder:
    """A ``Recorder`` that does the work again, with what its tensors have then."""

    def __init__(self) -> None:
        self.num_recordings = 0
        self.num_replays = 0

    def __call__(self, work: Callable[[], None]) -> Replay:
        work()
        self.num_recordings += 1

        def replay() -> None:
            self.num_replays += 1
            work()

        return replay


def recorder_for(device: str) -> Recorder:
    if device == "cpu":
        return PlainRecorder()
    from workers.rank.graphs.cuda_recorder import CudaRecorder

    return CudaRecorder(torch.device("cuda", 0))
