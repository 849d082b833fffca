"""Whether Numba compiles programs here, and the programs for a type, called with tensors.

Numba is imported only if they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

#: How programs see the numbers of a tensor.
_SEEN_AS = {torch.float32: torch.float32, torch.bfloat16: torch.uint16}


def takes(dtype: torch.dtype) -> bool:
    """Whether programs for numbers of this type are compiled here."""
    return dtype in _SEEN_AS and not missing()


@cache
def missing() -> str:
    """Why no programs can be compiled here; empty if they can."""
    if find_spec("numba") is None:
        return "Numba is not installed"
    try:
        program("rms_norm", torch.float32)
    # A compiler that does not fit this machine, or these packages, may raise anything.
    except Exception as error:  # noqa: BLE001
        return f"Numba does not compile ({type(error).__name__})"
    return ""


def seen(tensor: torch.Tensor) -> Any:
    """The tensor as programs take it."""
    return tensor.view(_SEEN_AS[tensor.dtype]).numpy()


def program(name: str, dtype: torch.dtype, head_dim: int = 0) -> Callable[..., None]:
    """The program of this name, for numbers of a type and as many threads as torch has. The first call compiles it."""
    threads = torch.get_num_threads()
    if threads > 1:
        import numba

        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    return _compiled(name, dtype, head_dim, is_parallel=threads > 1)


@cache
def _compiled(name: str, dtype: torch.dtype, head_dim: int, *, is_parallel: bool) -> Callable[..., None]:
    from numba import types

    from baton_serve.workers.rank.cpu.programs import compiled

    number = types.float32 if dtype == torch.float32 else types.uint16
    found: Callable[..., None] = compiled(name, number, head_dim, parallel=is_parallel)
    return found


class CpuRows:
    """``RowPrograms`` on a CPU."""

    def takes(self, dtype: torch.dtype) -> bool:
        return takes(dtype)

    def rms_norm(self, inputs: torch.Tensor, weight: torch.Tensor, outputs: torch.Tensor, eps: float) -> None:
        size = weight.numel()
        program("rms_norm", weight.dtype)(seen(inputs.view(-1, size)), seen(weight), seen(outputs.view(-1, size)), eps)

    def rotate(
        self, product: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, heads: int, head_dim: int
    ) -> None:
        angles = (seen(each.view(-1, head_dim)) for each in (cosines, sines))
        program("rotate", product.dtype)(seen(product.view(-1, product.shape[-1])), *angles, heads)

    def gate(self, product: torch.Tensor, outputs: torch.Tensor) -> None:
        size = outputs.shape[-1]
        program("gate", product.dtype)(seen(product.view(-1, 2 * size)), seen(outputs.view(-1, size)))
