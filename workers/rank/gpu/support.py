"""Whether Triton's programs can be compiled. Triton is imported only if they are used."""

from __future__ import annotations

import os
import shutil
from functools import cache
from importlib.util import find_spec

import torch

from baton_serve.workers.rank_protocol.errors import one_line


def missing(device: torch.device) -> str:
    """What programs for this device need and do not have here; empty if they have everything."""
    return missing_triton(device) if device.type == "cuda" else f"the model is on {device.type}, and a GPU is needed"


@cache  # every KV cache asks
def missing_triton(device: torch.device) -> str:
    """The same for a GPU, on which one program is tried."""
    if find_spec("triton") is None:
        return "the package triton is not installed"
    # Triton compiles the function that starts a program.
    has_compiler = "CC" in os.environ or shutil.which("gcc") or shutil.which("clang")
    if not has_compiler:
        return "Triton needs a C compiler, and there is neither gcc nor clang"
    try:
        _try(device)
    # A compiler that lacks a header, or a GPU that Triton does not know, may raise anything.
    except Exception as error:  # noqa: BLE001
        return f"Triton does not compile ({type(error).__name__}: {one_line(error)})"
    return ""


def _try(device: torch.device) -> None:
    from baton_serve.workers.rank.gpu.launches import TritonRows

    numbers = torch.ones((1, 16), device=device)
    TritonRows().rms_norm(numbers, numbers[0], torch.empty_like(numbers), 1e-6)
