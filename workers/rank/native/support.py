"""Whether there are native programs. Numba is imported only if they are used."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch

DTYPES = (torch.float32, torch.bfloat16)


def is_available(dtype: torch.dtype) -> bool:
    """Whether programs for numbers of the type can be compiled here."""
    return dtype in DTYPES and not missing()


@cache
def has_tiles(dtype: torch.dtype) -> bool:
    """Whether this processor has what makes ``products`` and ``tiled`` faster than oneDNN: AVX512.

    For bfloat16 it has to multiply them, two at a time; one with instructions for matrices (AMX) has something faster.
    """
    if not is_available(dtype):
        return False
    from llvmlite import binding

    has = {name for name, is_there in binding.get_host_cpu_features().items() if is_there}
    if "avx512f" not in has or (dtype == torch.bfloat16 and ("avx512bf16" not in has or "amx-bf16" in has)):
        return False
    try:
        from workers.rank.native.products import part, product
        from workers.rank.native.tiles import has_team

        product(dtype)
        part(dtype)
    # A compiler that does not know an instruction may raise anything.
    except Exception:  # noqa: BLE001
        return False
    return has_team()


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
