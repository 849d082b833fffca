"""Attention over the paged cache, as the models of transformers call it.

Models look up their attention function by name in ``transformers.AttentionInterface``, and call it with the queries,
keys and values of the layer. The call does not say to which sequences the tokens belong; ``attending`` sets this around
the forward pass. No mask function is registered under ``NAME``, so models build no mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from baton_serve.workers.rank.cache.batch import Batch, BatchRow
from baton_serve.workers.rank.cache.kv_cache import KVCache, gathered

NAME = "baton_paged"


class AttentionCall(NamedTuple):
    """What an attention module passes to the attention function.

    ``query`` is ``[1, head, token, head_dim]``, ``key`` and ``value`` are ``[1, kv_head, token, head_dim]``. ``extras``
    are the other arguments that the model has passed.
    """

    module: torch.nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float | None
    window: int | None
    extras: dict[str, Any]

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.key.shape[1]

    @property
    def head_dim(self) -> int:
        return self.query.shape[3]


#: The attention of every layer during one forward pass; returns ``[1, token, head, head_dim]``.
Attend = Callable[[AttentionCall], torch.Tensor]

_active: ContextVar[Attend] = ContextVar("attend")


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Use ``attend`` for the forward pass inside the block."""
    token = _active.set(attend)
    try:
        yield
    finally:
        _active.reset(token)


def call_active(call: AttentionCall) -> torch.Tensor:
    """Call the attention of the forward pass that runs."""
    return _active.get()(call)


def _entry(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **extras: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers calls."""
    extras["attention_mask"] = attention_mask
    return call_active(AttentionCall(module, query, key, value, scaling, sliding_window, extras)), None


def register() -> None:
    """Register ``NAME`` with transformers. Idempotent."""
    AttentionInterface.register(NAME, _entry)


class PagedAttention:
    """Writes K and V of the batch into the cache, then computes the attention of every token to its own sequence.

    Row by row, whose keys and values are copied together: the plain way, which needs no program.
    """

    def __init__(self, cache: KVCache, batch: Batch) -> None:
        self._cache = cache
        self._batch = batch
        #: The blocks that a row reads, and its mask, by its first token on the token axis and the window.
        self._plans: dict[tuple[int, int | None], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        module, query, key, value, scaling, window, _ = call
        layer = layer_index(module)
        self._cache.write(layer, self._batch.slots, key[0], value[0])
        _, heads, num_tokens, head_dim = query.shape
        out = query.new_empty((num_tokens, heads, head_dim))
        first = 0
        for row in self._batch.rows:
            tokens = slice(first, first + row.num_tokens)
            if row.start == 0 and row.num_tokens > 1 and (window is None or row.end <= window):
                attend_to_itself(tokens, query, key, value, scaling, out[tokens])
            else:
                if (first, window) not in self._plans:
                    self._plans[first, window] = self._plan(row, window)
                blocks, mask = self._plans[first, window]
                out[tokens] = self._attend(blocks, mask, layer, query[:, :, tokens], scaling)
            first = tokens.stop
        return out.unsqueeze(0)

    def _plan(self, row: BatchRow, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        size, device = self._cache.shape.block_size, self._cache.device
        first_block = 0 if window is None else max(0, row.start - window + 1) // size
        block_ids = torch.tensor(row.block_ids[first_block : -(-row.end // size)], device=device)
        seen = torch.arange(first_block * size, (first_block + len(block_ids)) * size, device=device)
        asking = torch.arange(row.start, row.end, device=device)[:, None]
        mask = seen <= asking
        return block_ids, mask if window is None else mask & (seen > asking - window)

    def _attend(
        self, blocks: torch.Tensor, mask: torch.Tensor, layer: int, query: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """The attention of a row to the cache, ``[token, head, head_dim]``."""
        key, value = gathered(self._cache.tensor[:, :, layer], blocks)
        shared = query.shape[1] // key.shape[0]
        if shared > 1:
            # CUDA's fused kernels support a mask or shared heads, not both. Other kernels would store all scores.
            key, value = key.repeat_interleave(shared, 0), value.repeat_interleave(shared, 0)
        attended = scaled_dot_product_attention(query, key[None], value[None], attn_mask=mask, scale=scaling)
        return attended[0].transpose(0, 1)


def attend_to_itself(
    tokens: slice,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    out: torch.Tensor,
) -> None:
    """Attention of the first chunk of a prompt, which needs nothing from the cache.

    ``query``, ``key`` and ``value`` are those of ``AttentionCall``; ``tokens`` are the chunk's. ``out`` is
    ``[token, head, head_dim]`` of the chunk.
    """
    attended = scaled_dot_product_attention(
        query[:, :, tokens],
        key[:, :, tokens],
        value[:, :, tokens],
        is_causal=True,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    out.copy_(attended[0].transpose(0, 1))


def layer_index(module: torch.nn.Module) -> int:
    """The layer that the attention module belongs to, counted over the whole model."""
    index = module.layer_idx
    assert isinstance(index, int), "checked when the model was loaded"
    return index
