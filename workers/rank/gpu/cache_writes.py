"""Starts the program that writes to the paged cache. Importing this needs the package ``triton``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton

from baton_serve.workers.rank.gpu.programs import store_program

if TYPE_CHECKING:
    import torch


def store(layer: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor, value_offset: int) -> None:
    """Store K and V, both ``[kv_head, token, head_dim]`` with a contiguous last dimension.

    ``layer`` begins with the layer's first slot; ``slots`` ``[kv_head * token]`` count from there; ``value_offset`` is
    the distance of a token's value from its key, in numbers.
    """
    kv_heads, tokens, head_dim = key.shape
    store_program[(tokens, kv_heads)](
        layer,
        slots,
        key,
        value,
        tokens,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        value_offset,
        HEAD_DIM=head_dim,
        BLOCK=triton.next_power_of_2(head_dim),
    )
