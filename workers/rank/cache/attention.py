"""Attention over the paged cache, as the models of transformers call it.

Models look up their attention function by name in ``transformers.AttentionInterface``, and call it with the queries,
keys and values of the layer. The call does not say to which sequences the tokens belong; ``attending`` sets this around
the forward pass. No mask function is registered under ``NAME``, so models build no mask.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from baton_serve.workers.rank.native.support import is_available

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton_serve.workers.rank.cache.batch import Batch, Group
    from baton_serve.workers.rank.cache.kv_cache import KVCache

NAME = "baton_paged"


class Attend(Protocol):
    """The attention of every layer during one forward pass.

    ``query`` is ``[1, head, token, head_dim]``, ``key`` and ``value`` are ``[1, kv_head, token, head_dim]``; returns
    ``[1, token, head, head_dim]``. ``extras`` are the other arguments that the model has passed.
    """

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
        extras: dict[str, Any],
    ) -> torch.Tensor: ...


_active: ContextVar[Attend] = ContextVar("attend")


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Use ``attend`` for the forward pass inside the block."""
    token = _active.set(attend)
    try:
        yield
    finally:
        _active.reset(token)


def call_active(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
    extras: dict[str, Any],
) -> torch.Tensor:
    """Call the attention of the forward pass that runs. See ``Attend``."""
    return _active.get()(module, query, key, value, scaling, window, extras)


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
    return call_active(module, query, key, value, scaling, sliding_window, extras), None


def register() -> None:
    """Register ``NAME`` with transformers. Idempotent."""
    AttentionInterface.register(NAME, _entry)


class PagedAttention:
    """Writes K and V of the batch into the cache, then computes the attention of every token to its own sequence."""

    def __init__(self, cache: KVCache, batch: Batch, first_layer: int = 0) -> None:
        self._cache = cache
        self._batch = batch
        self._first_layer = first_layer

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
        extras: dict[str, Any],
    ) -> torch.Tensor:
        layer = layer_index(module) - self._first_layer
        self._cache.write(layer, self._batch.slots, key[0], value[0])
        parts = []
        for group in self._batch.groups:
            if group.sees_only_itself(window):
                _, heads, _, head_dim = query.shape
                out = query.new_empty((group.tokens.stop - group.tokens.start, heads, head_dim))
                attend_to_itself(group.tokens, query, key, value, scaling, out)
                parts.append(out)
            elif group.is_prefill:
                parts.append(self._prefill(group, layer, query, scaling, window))
            else:
                parts.append(self._decode(group, layer, query, scaling, window))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0)

    def _decode(
        self, group: Group, layer: int, query: torch.Tensor, scaling: float | None, window: int | None
    ) -> torch.Tensor:
        """Attention of rows of one token. Query heads that share a KV head go to the query axis, so that K and V are
        not copied.
        """
        plan = group.plan(window)
        key, value = self._cache.gather(layer, plan.pieces)
        rows, kv_heads, tokens, _ = key.shape
        mine = query[0, :, group.tokens].transpose(0, 1)
        heads, head_dim = mine.shape[1:]
        shared = heads // kv_heads
        out = scaled_dot_product_attention(
            mine.reshape(rows, kv_heads, shared, head_dim),
            key,
            value,
            # With a mask of full size the CPU's fused kernel is a third faster (measured); ``expand`` copies nothing.
            attn_mask=plan.mask.expand(rows, 1, shared, tokens),
            scale=scaling,
        )
        return out.reshape(rows, heads, head_dim)

    def _prefill(
        self, group: Group, layer: int, query: torch.Tensor, scaling: float | None, window: int | None
    ) -> torch.Tensor:
        """Attention of a prefill chunk that continues a context, or that is longer than the window."""
        plan = group.plan(window)
        key, value = self._cache.gather(layer, plan.pieces)
        mine = query[:, :, group.tokens]
        shared = query.shape[1] // key.shape[1]
        if shared > 1 and query.is_cuda:
            # CUDA's fused kernels support a mask or shared heads, not both. Other kernels would store all scores.
            key, value, shared = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1), 1
        out = scaled_dot_product_attention(mine, key, value, attn_mask=plan.mask, scale=scaling, enable_gqa=shared > 1)
        return out[0].transpose(0, 1)


def attend_to_itself(
    tokens: slice,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    out: torch.Tensor,
) -> None:
    """Attention of the first chunk of a prompt, which needs nothing from the cache.

    ``query``, ``key`` and ``value`` are those of ``Attend``; ``tokens`` are the chunk's. ``out`` is
    ``[token, head, head_dim]`` of the chunk.
    """
    if query.device.type == "cpu" and is_available(query.dtype):
        # Programs are compiled when they are first needed.
        from baton_serve.workers.rank.native.attention.causal import attend_causally

        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        attend_causally(query[0, :, tokens], key[0, :, tokens], value[0, :, tokens], scale, None, out)
        return
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
