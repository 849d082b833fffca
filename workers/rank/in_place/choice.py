"""Which attention a rank uses: in place on a GPU, gathered elsewhere."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from workers.rank.cache.attention import PagedAttention
from workers.rank.in_place.attention import InPlaceAttention
from workers.rank.in_place.rows import paged_rows
from workers.rank_protocol.errors import ModelLoadError

if TYPE_CHECKING:
    from workers.rank.cache.attention import Attend
    from workers.rank.cache.batch import Batch
    from workers.rank.cache.kv_cache import KVCache
    from workers.rank.in_place.port import Kernel


def choose_kernel(wanted: str, device: torch.device) -> Kernel | None:
    """The kernel for ``RankSpec.attention`` on this device; None: keys and values are gathered.

    Raises ModelLoadError if ``in-place`` is wanted where it is not possible.
    """
    missing = _missing(device)
    if wanted == "in-place" and missing:
        raise ModelLoadError(f"attention in-place is wanted, but {missing}")
    if wanted == "gather" or missing:
        return None
    from workers.rank.in_place.triton_kernel import TritonKernel

    return TritonKernel(torch.cuda.get_device_properties(device).multi_processor_count)


def _missing(device: torch.device) -> str:
    if device.type != "cuda":
        return f"the model is on {device.type}, and it needs a GPU"
    return "" if find_spec("triton") else "the package triton is not installed"


def attention_of(kernel: Kernel | None, cache: KVCache, batch: Batch) -> Attend:
    """The attention of one forward pass."""
    if kernel is None:
        return PagedAttention(cache, batch)
    return InPlaceAttention(kernel, cache, batch.slots, paged_rows(batch, cache.device))
