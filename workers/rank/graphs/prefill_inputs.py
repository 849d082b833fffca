"""The inputs of steps with chunks of prompts, in tensors that never move, so that graphs can read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from workers.rank.cache.batch import row_slots
from workers.rank.graphs.mirror import Mirror
from workers.rank.in_place.port import TOKENS_PER_TILE, RaggedRows
from workers.rank.in_place.rows import fill_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from workers.rank.cache.batch import BatchRow
    from workers.rank.cache.kv_cache import KVCache

#: What a line of ``RaggedRows.tiles`` has.
TILE_NUMBERS = 4


@dataclass(frozen=True)
class PrefillStep:
    """Views of the inputs of so many tokens. ``slots`` ``[token]`` are those of layer 0's K of the first KV head.

    ``last_tokens`` ``[row]`` are where the last token of each row is on the token axis, and zeros after them.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    last_tokens: torch.Tensor
    rows: RaggedRows


class PrefillInputs:
    """Room for ``max_tokens`` tokens of at most ``max_rows`` rows, one row after the other.

    A step of fewer tokens is filled up with rows in the cache's spare block, which no sequence has, each of them as
    long as a tile: what they write and what comes of them is of no interest, but it is computed like any other row.
    """

    def __init__(self, cache: KVCache, max_tokens: int, max_rows: int, max_model_len: int) -> None:
        self._shape = cache.shape
        self._max_rows = max_rows
        self._max_model_len = max_model_len
        self._spare_tokens = min(TOKENS_PER_TILE, max_model_len)
        #: Token ids, positions and slots; the last token of each row.
        self._numbers = Mirror((3, max_tokens), torch.int64, cache.device)
        self._last_tokens = Mirror((max_rows,), torch.int64, cache.device)
        #: The first line is that of rows that fill up a step, and never changes.
        self._tables = Mirror((1 + max_rows, -(-max_model_len // cache.shape.block_size)), torch.int32, cache.device)
        self._tables.host[0] = cache.spare_block
        self._tiles = Mirror((self._num_tiles(max_tokens), TILE_NUMBERS), torch.int32, cache.device)
        slots_per_block = cache.shape.pieces_per_block * cache.shape.block_size
        spare = np.arange(max_tokens) % self._spare_tokens
        self._spare_slots = cache.spare_block * slots_per_block + spare % cache.shape.block_size
        self._spare_positions = spare
        self.fill([], [], max_tokens)

    def num_rows(self, size: int) -> int:
        """The most rows of a step that is filled up to ``size`` tokens."""
        return min(size, self._max_rows)

    def _num_tiles(self, size: int) -> int:
        """The most tiles of such a step: all rows, and those that fill it up, may end with one that is not full."""
        return min(size, -(-size // self._spare_tokens) + self.num_rows(size) + 1)

    def fill(self, rows: Sequence[BatchRow], token_ids: Sequence[int], size: int) -> None:
        """Write the inputs of ``rows``, whose tokens are ``token_ids``, and fill them up to ``size`` tokens."""
        numbers, tiles, count = self._numbers.host, self._tiles.host, len(token_ids)
        numbers[0, :count] = token_ids
        token = tile = 0
        for number, row in enumerate(rows):
            end = token + row.num_tokens
            numbers[1, token:end] = np.arange(row.start, row.end)
            numbers[2, token:end] = row_slots(row, self._shape)
            self._last_tokens.host[number] = end - 1
            tile += _cut(tiles[tile:], number + 1, token, row.num_tokens, row.start)
            token = end
        fill_tables(self._tables.host[1 : 1 + len(rows)], rows)
        numbers[0, count:size] = 0
        numbers[1, count:size] = self._spare_positions[: size - count]
        numbers[2, count:size] = self._spare_slots[: size - count]
        for first in range(count, size, self._spare_tokens):
            tile += _cut(tiles[tile:], 0, first, min(self._spare_tokens, size - first), 0)
        tiles[tile : self._num_tiles(size)] = 0
        self._last_tokens.host[len(rows) :] = 0
        for mirror, num_lines in (
            (self._numbers, 3),
            (self._last_tokens, self.num_rows(size)),
            (self._tables, 1 + len(rows)),
            (self._tiles, self._num_tiles(size)),
        ):
            mirror.copy(num_lines)

    def step(self, size: int) -> PrefillStep:
        """The inputs of ``size`` tokens, as a graph reads them."""
        token_ids, positions, slots = self._numbers.device[:, :size]
        tiles = self._tiles.device[: self._num_tiles(size)]
        rows = RaggedRows(tiles, self._tables.device, self._max_model_len)
        return PrefillStep(token_ids, positions, slots, self._last_tokens.device[: self.num_rows(size)], rows)


def _cut(tiles: NDArray[np.int32], row: int, first_token: int, num_tokens: int, start: int) -> int:
    """Write the tiles of a row; returns how many."""
    offsets = np.arange(0, num_tokens, TOKENS_PER_TILE)
    mine = tiles[: len(offsets)]
    mine[:, 0] = row
    mine[:, 1] = first_token + offsets
    mine[:, 2] = np.minimum(num_tokens - offsets, TOKENS_PER_TILE)
    mine[:, 3] = start + offsets
    return len(offsets)
