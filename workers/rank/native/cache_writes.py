"""Writes to the paged cache; ``cache/kv_cache.py`` says how it is laid out."""

from __future__ import annotations

from functools import lru_cache

import torch

from baton_serve.workers.rank.native.compiled import as_written, compiled
from baton_serve.workers.rank.native.numbers import ELEMENTS
from baton_serve.workers.rank.native.team import as_team, team_for

#: With fewer numbers of keys than these, one thread is done before a second one has begun.
LEAST_FOR_TWO = 1 << 16


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
        torch.get_num_threads(),
    )


@lru_cache(maxsize=4)
def _program(dtype):
    """``f(cache, slots, keys, values, tokens, kv_heads, head_dim, to_values, by_key, key_head, by_value, value_head,
    threads)``: copies keys and values into the cache.

    ``cache`` is that of the layer; ``slots`` ``[kv_head, token]`` are those of keys. Distances count numbers.
    """
    return compiled(_store, "elements indices elements elements" + 9 * " int", ELEMENTS[dtype])


def _store(
    cache, slots, keys, values, tokens, kv_heads, head_dim, to_values, by_key, key_head, by_value, value_head, threads
):
    team = team_for(threads, tokens * kv_heads * head_dim, LEAST_FOR_TWO)
    whole = (cache, slots, keys, values, tokens, kv_heads, head_dim, to_values, by_key, key_head, by_value, value_head)
    as_team(_copies, team, whole)


@as_written
def _copies(
    place,
    threads,
    cache,
    slots,
    keys,
    values,
    tokens,
    kv_heads,
    head_dim,
    to_values,
    by_key,
    key_head,
    by_value,
    value_head,
):
    for token in range(tokens * place // threads, tokens * (place + 1) // threads):
        for head in range(kv_heads):
            key, value = token * by_key + head * key_head, token * by_value + head * value_head
            to_key = slots[head * tokens + token] * head_dim
            to_value = to_key + to_values
            for i in range(head_dim):
                cache[to_key + i] = keys[key + i]
            for i in range(head_dim):
                cache[to_value + i] = values[value + i]
