"""Divides a read: by remote ranks, and into pieces that are posted in one call each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from baton_serve.workers.transfer.memory.remote_ranks import RemoteRank
from baton_serve.workers.transfer.nixl.port import TransferAgent, TransferHandle

_Ids = NDArray[np.int32]


class ReadPart:
    """The part of a read from one remote rank. ``local``, ``remote``: block ids, and the rank's number of blocks."""

    def __init__(self, rank: RemoteRank, local: tuple[_Ids, int], remote: tuple[_Ids, int]) -> None:
        self.rank = rank
        self._local_ids = _pieces_of(*local, rank.num_runs)
        self._remote_ids = _pieces_of(*remote, rank.num_runs)

    def slices(self, max_bytes: int) -> list[slice]:
        """The slices to post: at most ``max_bytes`` each, but at least one block."""
        step = max(1, max_bytes // self.rank.bytes_per_block) * self.rank.num_runs
        return [slice(start, start + step) for start in range(0, len(self._local_ids), step)]

    def post(self, agent: TransferAgent, pieces: slice) -> TransferHandle:
        """Start to read a slice. Raises NixlError."""
        return agent.post_read(self.rank.local, self._local_ids[pieces], self.rank.remote, self._remote_ids[pieces])

    def count(self, pieces: slice) -> tuple[int, int]:
        """The numbers of descriptors and bytes of a slice."""
        num_descriptors = len(self._local_ids[pieces])
        return num_descriptors, num_descriptors // self.rank.num_runs * self.rank.bytes_per_block


def interleaved(parts: Sequence[ReadPart], max_bytes: int) -> list[tuple[ReadPart, slice]]:
    """The slices of all parts, those of different ranks in turn, so that all remote ranks are read concurrently."""
    rounds = itertools.zip_longest(*([(part, pieces) for pieces in part.slices(max_bytes)] for part in parts))
    return [piece for pieces in rounds for piece in pieces if piece is not None]


def _pieces_of(block_ids: _Ids, num_blocks: int, num_runs: int) -> _Ids:
    """The indices of these blocks in a list of ``num_runs`` rows; the runs of one block follow each other."""
    if num_runs == 1:
        return block_ids
    return (block_ids[:, None] + np.arange(num_runs, dtype=np.int32) * np.int32(num_blocks)).ravel()
