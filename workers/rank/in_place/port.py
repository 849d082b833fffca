"""What a kernel of attention is asked to compute, whichever device it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class PagedRows:
    """Rows that have ``num_tokens`` tokens each, one row after the other on the token axis from ``first_token``.

    ``tables`` ``[row, block]`` (int32) has the blocks of each row, and anything after them. ``ends`` ``[row]`` (int32)
    is the context length of each row, with its own tokens, so at least 1. ``max_end`` is no less than any of them. A
    kernel takes the values of both tensors from the device, so that a captured kernel computes what is in them when it
    is replayed.
    ``is_beginning``: the rows have no earlier tokens, and several of their own.
    """

    first_token: int
    num_tokens: int
    tables: torch.Tensor
    ends: torch.Tensor
    max_end: int
    is_beginning: bool = False

    @property
    def tokens(self) -> slice:
        """Where the tokens of these rows are on the token axis."""
        return slice(self.first_token, self.first_token + self.num_tokens * len(self.ends))


class Kernel(Protocol):
    """Computes the attention of rows to the cache, which has their own keys and values already.

    ``query`` and ``out`` are ``[head, token, head_dim]`` and ``[token, head, head_dim]``, of the tokens of ``rows``
    only. ``blocks`` ``[block, kv_head, K|V, slot, head_dim]`` is one layer of the cache, with the strides that it has
    there. Token ``i`` of a row attends to all earlier tokens of the row and to itself; with a ``window`` only to the
    last ``window`` of these.
    """

    def __call__(
        self,
        query: torch.Tensor,
        blocks: torch.Tensor,
        rows: PagedRows,
        scaling: float,
        window: int | None,
        out: torch.Tensor,
    ) -> None: ...
