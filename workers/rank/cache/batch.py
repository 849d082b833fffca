"""Where the tokens of one forward pass are in the cache, computed once per step and used by every layer.

All rows are concatenated on one token axis: first the rows of one token (decode), then the rows of several tokens
(prefill). Index arrays are made with numpy on the host, and copied to the device once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from baton_serve.workers.rank.cache.kv_cache import CacheShape

#: The number of no adapter: the row is the model's own.
NO_ADAPTER = -1


@dataclass(frozen=True)
class BatchRow:
    """``num_tokens`` tokens of one sequence from position ``start``; ``block_ids`` cover these and earlier tokens.

    ``adapter``: number of the adapter that computes them.
    """

    start: int
    num_tokens: int
    block_ids: Sequence[int]
    adapter: int = NO_ADAPTER

    @property
    def end(self) -> int:
        """The context length after this row is computed."""
        return self.start + self.num_tokens


class AdapterRun(NamedTuple):
    """Tokens side by side that one adapter computes."""

    adapter: int
    tokens: slice


class Batch:
    """One forward pass. ``order`` lists the indices of the rows in their order on the token axis, and ``rows`` has them
    in that order, the first ``num_decode`` of which have one token; ``last_tokens`` has the place of each row's last
    token, by its index.
    """

    def __init__(self, rows: Sequence[BatchRow], shape: CacheShape, device: torch.device) -> None:
        # Rows of one adapter are side by side.
        self.order = sorted(range(len(rows)), key=lambda i: (rows[i].num_tokens > 1, rows[i].adapter))
        self.rows = [rows[i] for i in self.order]
        self.num_decode = sum(row.num_tokens == 1 for row in rows)
        ends = np.cumsum([row.num_tokens for row in self.rows])
        self.num_tokens = int(ends[-1])
        self.last_tokens = [0] * len(rows)
        for i, end in zip(self.order, ends.tolist(), strict=True):
            self.last_tokens[i] = end - 1
        self.adapter_runs = _adapter_runs(self.rows)
        positions = np.concatenate([np.arange(row.start, row.end) for row in self.rows])
        self.positions = _to(device, positions)
        self.slots = _to(device, _slots(self.rows, shape))


def tail_blocks(rows: Sequence[BatchRow], block_size: int) -> list[int]:
    """The blocks that these rows begin to fill and do not fill completely.

    These blocks are cleared before the pass. Their unused slots contain data of a former owner, which is masked; but
    zero times NaN is NaN, so without clearing a NaN of one sequence could reach another sequence.
    """
    tails = []
    for row in rows:
        last, used = divmod(row.end - 1, block_size)
        if used != block_size - 1 and last * block_size >= row.start:
            tails.append(row.block_ids[last])
    return tails


def _adapter_runs(rows: list[BatchRow]) -> tuple[AdapterRun, ...]:
    """The runs of rows that are in their order on the token axis. Rows without an adapter are in none."""
    runs: list[AdapterRun] = []
    end = 0
    for row in rows:
        start, end = end, end + row.num_tokens
        if row.adapter == NO_ADAPTER:
            continue
        if runs and runs[-1].adapter == row.adapter and runs[-1].tokens.stop == start:
            start = runs.pop().tokens.start
        runs.append(AdapterRun(row.adapter, slice(start, end)))
    return tuple(runs)


def row_slots(row: BatchRow, shape: CacheShape) -> NDArray[np.int64]:
    """For each token of a row, the slot of layer 0's K of the first KV head."""
    positions = np.arange(row.start, row.end)
    first = row.start // shape.block_size
    table = np.array(row.block_ids[first : (row.end - 1) // shape.block_size + 1], dtype=np.int64)
    pieces = table[positions // shape.block_size - first] * shape.pieces_per_block
    slots: NDArray[np.int64] = pieces * shape.block_size + positions % shape.block_size
    return slots


def head_slots(shape: CacheShape) -> NDArray[np.int64]:
    """How far the slots of each KV head are from those of the first one."""
    slots: NDArray[np.int64] = np.arange(shape.num_kv_heads) * (shape.pieces_per_head * shape.block_size)
    return slots


def _slots(rows: list[BatchRow], shape: CacheShape) -> NDArray[np.int64]:
    """The slot of layer 0's K for every (head, token), as an array of ``kv_head * token`` numbers."""
    tokens: NDArray[np.int64] = np.concatenate([row_slots(row, shape) for row in rows])
    slots: NDArray[np.int64] = head_slots(shape)[:, None] + tokens[None, :]
    return slots.ravel()


def _to(device: torch.device, array: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
