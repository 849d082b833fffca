"""Recorders for tests without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from baton_serve.workers.rank.graphs.cuda_recorder import CudaRecorder, Recorder, Replay


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
    return CudaRecorder(torch.device("cuda", 0))


class WaitedError(Exception):
    """The work did what waits for a GPU, which a CUDA graph cannot record."""


class StrictRecorder(PlainRecorder):
    """Refuses, without a GPU, work that needs the values of a tensor, or brings values from the host.

    ``watches``: it looks at what is done now.
    """

    watches = False

    def __call__(self, work: Callable[[], None]) -> Replay:
        self.watches = True
        try:
            with _Watch():
                work()
        finally:
            self.watches = False
        return super().__call__(work)


class _Watch(TorchDispatchMode):
    """Sees every operation that reaches a device."""

    #: ``item`` and conditions; what is as large as there are hits; ``torch.tensor``, which is copied from the host.
    WAITING = frozenset({"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "lift_fresh"})

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.partition("::")[2]
        by_condition = name.startswith("index") and any(_is_mask(one) for one in tree_leaves(args[1:2]))
        if name in self.WAITING or by_condition:
            raise WaitedError(name)
        return func(*args, **(kwargs or {}))


def _is_mask(one: object) -> bool:
    return isinstance(one, torch.Tensor) and one.dtype is torch.bool
