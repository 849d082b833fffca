"""The attention of a forward pass that reads the cache in place: an ``Attend``, as the models call it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from baton_serve.workers.rank.cache.attention import AttentionCall, attend_to_itself, layer_index
from baton_serve.workers.rank.cache.kv_cache import KVCache
from baton_serve.workers.rank.in_place.rows import Kernel, PagedRows


class InPlaceAttention:
    """Writes K and V of all tokens into the cache, then computes the attention of every token to its own sequence.

    ``slots`` are those of ``KVCache.write``; ``parts`` cover the token axis, in order.
    """

    def __init__(self, cache: KVCache, slots: torch.Tensor, kernel: Kernel, parts: Sequence[PagedRows]) -> None:
        self._cache = cache
        self._slots = slots
        self._kernel = kernel
        self._parts = parts

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        module, query, key, value, scaling, window, _ = call
        number = layer_index(module)
        self._cache.write(number, self._slots, key[0], value[0])
        _, heads, tokens, head_dim = query.shape
        out = torch.empty((tokens, heads, head_dim), dtype=query.dtype, device=query.device)
        # The kernel wants the numbers of a head side by side. If a model has them in another order, they are copied.
        query = query if query.stride(-1) == 1 else query.contiguous()
        scale = head_dim**-0.5 if scaling is None else scaling
        blocks = self._cache.all_blocks[:, :, number]
        for rows in self._parts:
            mine = rows.tokens
            if query.is_cuda and rows.is_beginning and (window is None or rows.num_tokens <= window):
                # The tokens are at hand, and torch's own kernel for this case is the fastest of a GPU.
                attend_to_itself(mine, query, key, value, scale, out[mine])
            else:
                self._kernel(query[0, :, mine], blocks, rows, scale, window, out[mine])
        return out[None]
