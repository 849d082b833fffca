"""Writes to the paged cache; ``cache/kv_cache.py`` says how it is laid out."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from workers.rank.native.compiled import compiled
from workers.rank.native.numbers import ELEMENTS

if TYPE_CHECKING:
    import torch


def store(layer: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor, value_offset: int) -> None:
    """As ``workers.rank.gpu.cache_writes.store``, on a CPU."""
    kv_heads, tokens, head_dim = key.shape
    _program(layer.dtype)(
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


@lru_cache(maxsize=4)
def _program(dtype):
    """``f(cache, slots, keys, values, tokens, kv_heads, head_dim, to_values, key_token, key_head, value_token,
    value_head)``: copies keys and values into the cache.

    ``cache`` is that of the layer; ``slots`` ``[kv_head, token]`` are those of keys. Distances count numbers.
    """
    return compiled(_store, "elements indices elements elements" + 8 * " int", ELEMENTS[dtype])


def _store(cache, slots, keys, values, tokens, kv_heads, head_dim, to_values, k_token, k_head, v_token, v_head):
    for token in range(tokens):
        for head in range(kv_heads):
            key, value = token * k_token + head * k_head, token * v_token + head * v_head
            to_key = slots[head * tokens + token] * head_dim
            to_value = to_key + to_values
            for i in range(head_dim):
                cache[to_key + i] = keys[key + i]
            for i in range(head_dim):
                cache[to_value + i] = values[value + i]
