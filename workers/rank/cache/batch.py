"""Where the tokens of one forward pass are in the cache, computed once per step and used by every layer.

All rows are concatenated on one token axis: first the rows of one token (decode), grouped so that rows of similar
context length share a padded gather, then the rows of several tokens (prefill), each in a group of its own. Index
arrays are made with numpy on the host, and copied to the device once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from baton_serve.workers.rank.cache.kv_cache import CacheShape

#: Rows with at most this many blocks share one group: their padding costs less than one more call per layer.
SMALL_GROUP_BLOCKS = 8
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


@dataclass(frozen=True)
class KeyPlan:
    """The pieces of the cache that a group reads (``pieces``: ``[row, kv_head, block]``), and a ``mask``.

    ``mask`` is True for tokens that are attended to. Its shape is ``[row, 1, 1, token]`` for decode and
    ``[1, 1, query, token]`` for prefill.
    """

    pieces: torch.Tensor
    mask: torch.Tensor


class Group:
    """Rows whose attention is one call: several rows of one token, or one row of several tokens.

    A group has one plan per window size.
    """

    def __init__(self, rows: list[BatchRow], first_token: int, shape: CacheShape, device: torch.device) -> None:
        self.rows = rows
        self.tokens = slice(first_token, first_token + sum(row.num_tokens for row in rows))
        self.is_prefill = rows[0].num_tokens > 1
        self._shape = shape
        self._device = device
        self._plans: dict[int | None, KeyPlan] = {}

    def sees_only_itself(self, window: int | None) -> bool:
        """Whether this is a prefill from position 0 that fits into the window, so that causal attention over its own
        tokens is enough.
        """
        row = self.rows[0]
        return self.is_prefill and row.start == 0 and (window is None or row.end <= window)

    def plan(self, window: int | None) -> KeyPlan:
        """The plan for tokens that attend to themselves and to ``window - 1`` earlier tokens (None: to all earlier)."""
        if window not in self._plans:
            self._plans[window] = self._make_plan(window)
        return self._plans[window]

    def _make_plan(self, window: int | None) -> KeyPlan:
        size = self._shape.block_size
        reach = window if window is not None else max(row.end for row in self.rows)
        # For each row: the index of the first block that its first token attends to, and the blocks from there on.
        firsts = [max(0, row.start - reach + 1) // size for row in self.rows]
        tables = [row.block_ids[first : -(-row.end // size)] for row, first in zip(self.rows, firsts, strict=True)]
        width = max(len(table) for table in tables)
        blocks = np.empty((len(tables), width), dtype=np.int64)
        for index, table in enumerate(tables):
            # The padding repeats the row's own first block and is masked; it is never a block of another sequence.
            blocks[index, : len(table)] = table
            blocks[index, len(table) :] = table[0]
        keys = np.array(firsts)[:, None] * size + np.arange(width * size)[None, :]
        queries = self._query_positions()
        mask = keys[:, None, :] <= queries[:, :, None]
        if window is not None:
            mask &= keys[:, None, :] > queries[:, :, None] - window
        heads = np.arange(self._shape.num_kv_heads) * self._shape.pieces_per_head
        pieces = blocks[:, None, :] * self._shape.pieces_per_block + heads[None, :, None]
        return KeyPlan(_to(self._device, pieces), _to(self._device, mask)[:, None])

    def _query_positions(self) -> NDArray[np.int64]:
        """The position of each query token, ``[row, query]``."""
        if self.is_prefill:
            row = self.rows[0]
            return np.arange(row.start, row.end)[None, :]
        return np.array([row.start for row in self.rows])[:, None]


class Batch:
    """One forward pass. ``order`` lists the indices of the rows in their order on the token axis."""

    def __init__(self, rows: Sequence[BatchRow], shape: CacheShape, device: torch.device) -> None:
        # Rows of one adapter are side by side, where that makes no more groups.
        decode = sorted(
            (i for i, row in enumerate(rows) if row.num_tokens == 1),
            key=lambda i: (_bucket(rows[i], shape), rows[i].adapter),
        )
        prefill = sorted((i for i, row in enumerate(rows) if row.num_tokens > 1), key=lambda i: rows[i].adapter)
        self.order = decode + prefill
        self.groups: list[Group] = []
        self.last_tokens = [0] * len(rows)
        self.num_tokens = 0
        for members in _split(decode, rows, shape) + [[i] for i in prefill]:
            self.groups.append(Group([rows[i] for i in members], self.num_tokens, shape, device))
            for i in members:
                self.num_tokens += rows[i].num_tokens
                self.last_tokens[i] = self.num_tokens - 1
        ordered = [rows[i] for i in self.order]
        self._ordered = ordered
        self.adapter_runs = _adapter_runs(ordered)
        positions = np.concatenate([np.arange(row.start, row.end) for row in ordered])
        self.positions = _to(device, positions)
        self.slots = _to(device, _slots(ordered, shape))

    def adapter_numbers(self) -> torch.Tensor:
        """The number of each token's adapter, int64 on the host."""
        numbers = [row.adapter for row in self._ordered]
        return torch.from_numpy(np.repeat(numbers, [row.num_tokens for row in self._ordered]))


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


def _bucket(row: BatchRow, shape: CacheShape) -> int:
    """Rows with the same bucket differ by less than a factor of two in the number of blocks."""
    return max(-(-row.end // shape.block_size), SMALL_GROUP_BLOCKS).bit_length()


def _split(decode: list[int], rows: Sequence[BatchRow], shape: CacheShape) -> list[list[int]]:
    """The decode rows, which are sorted by bucket, as one list of indices per bucket."""
    groups: dict[int, list[int]] = {}
    for index in decode:
        groups.setdefault(_bucket(rows[index], shape), []).append(index)
    return list(groups.values())


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
