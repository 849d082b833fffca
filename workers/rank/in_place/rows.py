"""What a kernel of attention is asked to compute, whichever device it is for, and how it is made from a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from baton_serve.workers.rank.cache.batch import Batch, BatchRow


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


def paged_rows(batch: Batch, device: torch.device) -> list[PagedRows]:
    """All rows of one token as one part, however long their contexts are, then each row of several tokens."""
    decode, first = batch.rows[: batch.num_decode], batch.num_decode
    parts = [_make(decode, 0, device)] if decode else []
    for row in batch.rows[batch.num_decode :]:
        parts.append(_make([row], first, device))
        first += row.num_tokens
    return parts


def fill_tables(tables: NDArray[np.int32], rows: Sequence[BatchRow]) -> None:
    """Write the blocks of each row to the beginning of its line in ``tables`` ``[row, block]``."""
    for line, row in zip(tables, rows, strict=True):
        line[: len(row.block_ids)] = row.block_ids


def _make(rows: Sequence[BatchRow], first_token: int, device: torch.device) -> PagedRows:
    tables = np.zeros((len(rows), max(len(row.block_ids) for row in rows)), dtype=np.int32)
    fill_tables(tables, rows)
    ends = np.array([row.end for row in rows], dtype=np.int32)
    return PagedRows(
        first_token=first_token,
        num_tokens=rows[0].num_tokens,
        tables=torch.from_numpy(tables).to(device),
        ends=torch.from_numpy(ends).to(device),
        max_end=int(ends.max()),
        is_beginning=len(rows) == 1 and rows[0].start == 0 and rows[0].num_tokens > 1,
    )
