"""The inputs of steps with chunks of prompts, in tensors that never move, so that graphs can read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from baton_serve.workers.rank.graphs.mirror import Mirror
from baton_serve.workers.rank.in_place.port import TILE_NUMBERS, TOKENS_PER_TILE, RaggedRows
from baton_serve.workers.rank.in_place.rows import fill_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from baton_serve.workers.rank.cache.batch import BatchRow
    from baton_serve.workers.rank.cache.kv_cache import KVCache


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
        self._block_size = cache.shape.block_size
        self._slots_per_block = cache.shape.pieces_per_block * cache.shape.block_size
        self._max_rows = max_rows
        self._max_model_len = max_model_len
        self._spare_tokens = min(TOKENS_PER_TILE, max_model_len)
        #: Token ids, positions and slots; the last token of each row.
        self._numbers = Mirror((3, max_tokens), torch.int64, cache.device)
        self._last_tokens = Mirror((max_rows,), torch.int64, cache.device)
        #: The first line is that of rows that fill up a step, and never changes.
        self._tables = Mirror((1 + max_rows, -(-max_model_len // self._block_size)), torch.int32, cache.device)
        self._tables.host[0] = cache.spare_block
        self._tiles = Mirror((self._num_tiles(max_tokens), TILE_NUMBERS), torch.int32, cache.device)
        self.fill([], [], max_tokens)

    def num_rows(self, size: int) -> int:
        """The most rows of a step that is filled up to ``size`` tokens."""
        return min(size, self._max_rows)

    def _num_tiles(self, size: int) -> int:
        """The most tiles of such a step: all rows, and those that fill it up, may end with one that is not full."""
        return min(size, -(-size // self._spare_tokens) + self.num_rows(size) + 1)

    def fill(self, rows: Sequence[BatchRow], token_ids: Sequence[int], size: int) -> None:
        """Write the inputs of ``rows``, whose tokens are ``token_ids``, and fill them up to ``size`` tokens."""
        # Arrays for all rows at once, since a step may have hundreds; the spare rows come behind the others.
        count = len(rows)
        full, rest = divmod(size - len(token_ids), self._spare_tokens)
        spare = [self._spare_tokens] * full + [rest] * (rest > 0)
        lines = np.array([*range(1, 1 + count), *[0] * len(spare)])
        lengths = np.array([*[row.num_tokens for row in rows], *spare])
        starts = np.array([*[row.start for row in rows], *[0] * len(spare)])
        ends = lengths.cumsum()
        fill_tables(self._tables.host[1 : 1 + count], rows)
        numbers = self._numbers.host[:, :size]
        numbers[0, : len(token_ids)] = token_ids
        numbers[0, len(token_ids) :] = 0
        row, offset = _each_of(lengths)
        numbers[1] = starts[row] + offset
        block, slot = np.divmod(numbers[1], self._block_size)
        numbers[2] = self._tables.host[lines[row], block].astype(np.int64) * self._slots_per_block + slot
        self._last_tokens.host[:count] = ends[:count] - 1
        self._last_tokens.host[count:] = 0
        row, offset = _each_of(-(-lengths // TOKENS_PER_TILE))
        offset *= TOKENS_PER_TILE
        tiles = self._tiles.host
        tiles[len(row) : self._num_tiles(size)] = 0
        tiles = tiles[: len(row)]
        tiles[:, 0] = lines[row]
        tiles[:, 1] = (ends - lengths)[row] + offset
        tiles[:, 2] = np.minimum(lengths[row] - offset, TOKENS_PER_TILE)
        tiles[:, 3] = starts[row] + offset
        for mirror, num_lines in (
            (self._numbers, 3),
            (self._last_tokens, self.num_rows(size)),
            (self._tables, 1 + count),
            (self._tiles, self._num_tiles(size)),
        ):
            mirror.copy(num_lines)

    def step(self, size: int) -> PrefillStep:
        """The inputs of ``size`` tokens, as a graph reads them."""
        token_ids, positions, slots = self._numbers.device[:, :size]
        tiles = self._tiles.device[: self._num_tiles(size)]
        rows = RaggedRows(tiles, self._tables.device, self._max_model_len)
        return PrefillStep(token_ids, positions, slots, self._last_tokens.device[: self.num_rows(size)], rows)


def _each_of(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each thing of groups that have so many: the number of its group, and its number in there."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - (counts.cumsum() - counts)[group]
