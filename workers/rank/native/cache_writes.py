"""Writes to the paged cache by the program of ``rows``; ``cache/kv_cache.py`` says how it is laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.rank.native import rows

if TYPE_CHECKING:
    import torch


def store(layer: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor, value_offset: int) -> None:
    """As ``workers.rank.gpu.cache_writes.store``, on a CPU."""
    kv_heads, tokens, head_dim = key.shape
    rows.store(layer.dtype)(
        layer.data_ptr(),
        slots.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        tokens,
        kv_heads,
        head_dim,
        value_offset,
        key.stride(1),
        key.stride(0),
        value.stride(1),
        value.stride(0),
    )
