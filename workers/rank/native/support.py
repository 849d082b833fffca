"""Whether there are native programs. Numba is imported only if they are used."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch

#: ``off``: as on a processor without AVX512.
TILES_VARIABLE = "BATON_TILES"
DTYPES = (torch.float32, torch.bfloat16)


def is_available(dtype: torch.dtype) -> bool:
    """Whether programs for numbers of the type can be compiled here."""
    return dtype in DTYPES and not missing()


def has_tiles(dtype: torch.dtype) -> bool:
    """Whether ``products``, and attention by tiles, are for this processor: one with AVX512, where they are faster.

    For bfloat16, one with instructions for matrices (AMX) has something faster. Raises ValueError if the environment
    says neither ``on`` nor ``off`` in ``BATON_TILES``.
    """
    return is_available(dtype) and _can_have_tiles(dtype) and not tiles_error(dtype)


@cache
def _can_have_tiles(dtype: torch.dtype) -> bool:
    """Whether tiles are wanted, and LLVM knows what it is to write: it ends the process where it does not."""
    if not _are_wanted():
        return False
    from llvmlite import binding
    from numba import config

    from baton_serve.workers.rank.native.team import has_team

    is_for_host = config.CPU_NAME is None and config.CPU_FEATURES is None and bool(config.ENABLE_AVX)
    has = {name for name, is_there in binding.get_host_cpu_features().items() if is_there}
    if not is_for_host or not has_team() or "avx512f" not in has:
        return False
    return dtype != torch.bfloat16 or "amx-bf16" not in has


def _are_wanted() -> bool:
    said = os.environ.get(TILES_VARIABLE) or "on"
    if said not in ("on", "off"):
        raise ValueError(f"{TILES_VARIABLE} is on or off, not {said!r}")
    return said == "on"


@cache
def tiles_error(dtype: torch.dtype) -> str:
    """Why programs of tiles are not compiled although the processor has what they need; else empty."""
    if not is_available(dtype) or not _can_have_tiles(dtype):
        return ""
    try:
        from baton_serve.workers.rank.native import products
        from baton_serve.workers.rank.native.attention import one_token, tiled

        for program in (products.product, tiled.attend, one_token.attend):
            program(dtype)
    # A compiler that does not know an instruction may raise anything.
    except Exception as error:  # noqa: BLE001
        return f"Numba does not compile programs of tiles ({type(error).__name__})"
    return ""


@cache  # each layer asks, and to look for a package that is not there takes as long as a small product
def missing() -> str:
    """Why no programs can be compiled here; empty if they can."""
    if find_spec("numba") is None:
        return "Numba is not installed"
    try:
        from baton_serve.workers.rank.native.rows import rms_norm

        rms_norm(torch.float32)
    # A compiler that does not fit this machine, or these packages, may raise anything.
    except Exception as error:  # noqa: BLE001
        return f"Numba does not compile ({type(error).__name__})"
    return ""
