"""Makes the rows of a kernel from those of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from baton_serve.workers.rank.in_place.port import PagedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from baton_serve.workers.rank.cache.batch import Batch, BatchRow


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
