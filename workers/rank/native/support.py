"""Whether there are native programs. Numba is imported only if they are used."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch

DTYPES = (torch.float32, torch.bfloat16)


def is_available(dtype: torch.dtype) -> bool:
    """Whether programs for numbers of the type can be compiled here."""
    return dtype in DTYPES and not missing()


@cache  # each layer asks, and to look for a package that is not there takes as long as a small product
def missing() -> str:
    """Why no programs can be compiled here; empty if they can."""
    if find_spec("numba") is None:
        return "Numba is not installed"
    try:
        from workers.rank.native.rows import rms_norm

        rms_norm(torch.float32)
    # A compiler that does not fit this machine, or these packages, may raise anything.
    except Exception as error:  # noqa: BLE001
        return f"Numba does not compile ({type(error).__name__})"
    return ""
