"""The inputs of decode steps, in tensors that never move, so that graphs can read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from baton_serve.workers.rank.cache.batch import BatchRow
from baton_serve.workers.rank.cache.kv_cache import KVCache
from baton_serve.workers.rank.in_place.rows import PagedRows, fill_tables


class Mirror:
    """A tensor on the device, and memory of the host from which its first lines are copied; on a CPU both are one."""

    def __init__(self, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.device = torch.zeros(sizes, dtype=dtype, device=device)
        # Memory that the GPU reads by itself, so that a copy does not wait.
        self._staged = torch.zeros(sizes, dtype=dtype, pin_memory=True) if device.type == "cuda" else self.device
        self.host = self._staged.numpy()

    def copy(self, num_lines: int) -> None:
        """Copy them. The host's memory may be changed again when the device has done its work so far."""
        if self._staged is not self.device:
            self.device[:num_lines].copy_(self._staged[:num_lines], non_blocking=True)


@dataclass(frozen=True)
class DecodeStep:
    """Views of the inputs of so many rows. ``slots`` ``[row]`` are those of layer 0's K of the first KV head."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    paged: PagedRows


class DecodeInputs:
    """Room for ``max_rows`` rows of one token.

    A step of fewer rows is filled up with rows of one token in the cache's spare block, which no sequence has: what
    they write and what comes of them is of no interest, but it is computed like any other row.
    """

    def __init__(self, cache: KVCache, max_rows: int, max_model_len: int) -> None:
        self._shape = cache.shape
        self._spare = cache.num_blocks
        self._max_model_len = max_model_len
        width = -(-max_model_len // cache.shape.block_size)
        self._slots_per_block = cache.shape.pieces_per_block * cache.shape.block_size
        #: Token ids, positions and slots; context lengths; block tables.
        self._numbers = Mirror((3, max_rows), torch.int64, cache.device)
        self._ends = Mirror((max_rows,), torch.int32, cache.device)
        self._tables = Mirror((max_rows, width), torch.int32, cache.device)
        self.fill([], [], max_rows)

    def fill(self, rows: Sequence[BatchRow], token_ids: Sequence[int], size: int) -> None:
        """Write the inputs of ``rows``, one token each, and fill them up to ``size`` rows."""
        count, block_size = len(rows), self._shape.block_size
        starts = np.array([row.start for row in rows], dtype=np.int64)
        blocks = np.array([row.block_ids[row.start // block_size] for row in rows], dtype=np.int64)
        numbers, ends, tables = self._numbers.host, self._ends.host, self._tables.host
        numbers[0, :count] = token_ids
        numbers[1, :count] = starts
        numbers[2, :count] = blocks * self._slots_per_block + starts % block_size
        numbers[:2, count:size] = 0
        numbers[2, count:size] = self._spare * self._slots_per_block
        ends[:count] = starts + 1
        ends[count:size] = 1
        fill_tables(tables[:count], rows)
        tables[count:size, 0] = self._spare
        # Whole lines: the parts of a step would not be one piece of memory, which torch copies on the host first.
        self._numbers.copy(3)
        self._ends.copy(size)
        self._tables.copy(size)

    def step(self, size: int) -> DecodeStep:
        """The inputs of ``size`` rows, as a graph reads them."""
        token_ids, positions, slots = self._numbers.device[:, :size]
        paged = PagedRows(0, 1, self._tables.device[:size], self._ends.device[:size], self._max_model_len)
        return DecodeStep(token_ids, positions, slots, paged)
