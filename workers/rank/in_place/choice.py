"""Which attention a rank uses: in place where there are programs for it, gathered elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import torch

from baton_serve.workers.rank.cache.attention import Attend, PagedAttention
from baton_serve.workers.rank.cache.batch import Batch
from baton_serve.workers.rank.cache.kv_cache import KVCache
from baton_serve.workers.rank.cpu.support import takes
from baton_serve.workers.rank.gpu import support as gpu
from baton_serve.workers.rank.in_place.attention import InPlaceAttention
from baton_serve.workers.rank.in_place.cpu_kernel import attend_on_cpu
from baton_serve.workers.rank.in_place.rows import Kernel, paged_rows
from baton_serve.workers.rank_protocol.errors import ModelLoadError


def choose_kernel(wanted: str, device: torch.device, progress: Callable[[str], None]) -> Kernel | None:
    """The kernel for ``RankSpec.attention`` on this device; None: keys and values are gathered.

    Says so if a GPU has to do without one. Raises ModelLoadError if ``in-place`` is wanted where it is not possible.
    """
    missing = gpu.missing(device)
    if wanted == "in-place" and missing:
        raise ModelLoadError(f"attention in-place is wanted, but {missing}")
    if wanted == "auto" and missing and device.type == "cuda":
        progress(f"attention gathers keys and values, because {missing}")
    if wanted == "gather" or missing:
        return None
    from baton_serve.workers.rank.in_place.triton_kernel import TritonKernel

    return TritonKernel(torch.cuda.get_device_properties(device).multi_processor_count)


def kernel_of_cpu(wanted: str, device: torch.device, dtype: torch.dtype) -> Kernel | None:
    """The kernel for ``RankSpec.attention`` and numbers of this type on a CPU; None: keys and values are gathered."""
    return attend_on_cpu if wanted != "gather" and device.type == "cpu" and takes(dtype) else None


def attention_of(kernel: Kernel | None, cache: KVCache, batch: Batch) -> Attend:
    """The attention of one forward pass."""
    if kernel is None:
        return PagedAttention(cache, batch)
    return InPlaceAttention(cache, batch.slots, kernel, paged_rows(batch, cache.device))
