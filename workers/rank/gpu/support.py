"""Whether Triton's programs can be compiled. Triton is imported only if they are used."""

from __future__ import annotations

import os
import shutil
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def missing(device: torch.device) -> str:
    """What programs for this device need and do not have here; empty if they have everything."""
    return _missing() if device.type == "cuda" else f"the model is on {device.type}, and it needs a GPU"


@cache  # every cache asks, and a look at PATH takes a while
def _missing() -> str:
    if find_spec("triton") is None:
        return "the package triton is not installed"
    # Triton compiles the function that starts a program.
    has_compiler = "CC" in os.environ or shutil.which("gcc") or shutil.which("clang")
    return "" if has_compiler else "Triton needs a C compiler, and there is neither gcc nor clang"
