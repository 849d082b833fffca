"""The attention of a forward pass that reads the cache in place: an ``Attend``, as the models call it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from baton_serve.workers.rank.cache.attention import attend_to_itself, layer_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton_serve.workers.rank.cache.kv_cache import KVCache
    from baton_serve.workers.rank.in_place.port import Kernel, PagedRows, RaggedKernel, RaggedRows


class Layer(NamedTuple):
    """What the attention of one layer is computed from: the arguments of ``Attend``, and the layer's blocks.

    ``out`` is ``[token, head, head_dim]``.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    blocks: torch.Tensor
    scaling: float
    window: int | None
    out: torch.Tensor


class Rows(Protocol):
    """All rows of a forward pass."""

    def attend(self, layer: Layer) -> None:
        """Compute the attention of one layer, whose keys and values are in the cache."""


class InPlaceAttention:
    """Writes K and V of all tokens into the cache, then computes the attention of every token to its own sequence.

    ``slots`` are those of ``KVCache.write``.
    """

    def __init__(self, cache: KVCache, slots: torch.Tensor, rows: Rows) -> None:
        self._cache = cache
        self._slots = slots
        self._rows = rows

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
        """See ``Attend``."""
        number = layer_index(module)
        self._cache.write(number, self._slots, key[0], value[0])
        _, heads, tokens, head_dim = query.shape
        out = torch.empty((tokens, heads, head_dim), dtype=query.dtype, device=query.device)
        # The kernel wants the numbers of a head side by side. If a model has them in another order, they are copied.
        query = query if query.stride(-1) == 1 else query.contiguous()
        scale = head_dim**-0.5 if scaling is None else scaling
        self._rows.attend(Layer(query, key, value, self._cache.all_blocks[:, :, number], scale, window, out))
        return out[None]


class EqualRows:
    """``Rows`` of which each part has equally many tokens. ``parts`` cover the token axis, in order."""

    def __init__(self, kernel: Kernel, parts: Sequence[PagedRows]) -> None:
        self._kernel = kernel
        self._parts = parts

    def attend(self, layer: Layer) -> None:
        """See ``Rows``."""
        query, key, value, blocks, scaling, window, out = layer
        for rows in self._parts:
            mine = rows.tokens
            if rows.is_beginning and (window is None or rows.num_tokens <= window):
                # The tokens are at hand, and torch's own kernel for this case is the fastest.
                attend_to_itself(mine, query, key, value, scaling, out[mine])
            else:
                self._kernel(query[0, :, mine], blocks, rows, scaling, window, out[mine])


class AnyRows:
    """``Rows`` of any numbers of tokens, by one call of the kernel."""

    def __init__(self, kernel: RaggedKernel, rows: RaggedRows) -> None:
        self._kernel = kernel
        self._rows = rows

    def attend(self, layer: Layer) -> None:
        """See ``Rows``."""
        self._kernel.attend_ragged(layer.query[0], layer.blocks, self._rows, layer.scaling, layer.window, layer.out)
