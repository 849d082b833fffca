"""The local side of every read: the cache, and scratch tables for the versions. Used in the agent's thread only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workers.transfer.nixl.nixl_port import PieceList, PieceRow, Pieces, Region, TransferAgent
from workers.transfer.versions import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from core.protocol.handshake import RankMetadata

#: Byte ranges of one block: (offset, length).
Spans = tuple[tuple[int, int], ...]


class LocalMemory:
    """Descriptor lists of local memory.

    Remote engines with the same split share lists of the cache; the last of these engines releases a list. The number
    of scratch tables is the largest number of remote ranks that one read has. A local block is part of one read at a
    time, so the version of block ``i`` on the remote rank with index ``s`` is read into ``scratch(s)[i]``.
    """

    def __init__(self, agent: TransferAgent, local: RankMetadata) -> None:
        self._agent = agent
        self._local = local
        self.num_blocks = local.num_blocks
        #: For each way to split a block: the descriptor list, and the number of remote engines that use it.
        self._blocks: dict[Spans, tuple[PieceList, int]] = {}
        #: Registered memory has to outlive the agent, so the tables are kept when their lists are released.
        self._tables: list[NDArray[np.uint64]] = []
        self._scratch: list[tuple[PieceList, NDArray[np.uint64]]] = []

    def acquire(self, spans: Spans) -> PieceList:
        """A list of these spans of all blocks; return it with ``release``. Raises NixlError."""
        pieces, num_users = self._blocks.get(spans, (None, 0))
        if not num_users:
            pieces = self._agent.prepare(blocks_of(self._local, spans))
        self._blocks[spans] = pieces, num_users + 1
        return pieces

    def release(self, spans: Spans) -> None:
        """Return a list, which is released when its last user returns it. Raises NixlError."""
        pieces, num_users = self._blocks[spans]
        if num_users > 1:
            self._blocks[spans] = pieces, num_users - 1
            return
        del self._blocks[spans]
        self._agent.release_list(pieces)

    def reserve_scratch(self, num_tables: int) -> None:
        """Make sure that there are at least ``num_tables`` scratch tables. Raises NixlError."""
        while len(self._scratch) < num_tables:
            table = np.zeros(self.num_blocks, dtype=VERSION)
            self._tables.append(table)
            # Registered after the agent's metadata was taken, so that no peer can read or write it.
            self._agent.register(Region(table.ctypes.data, table.nbytes))
            row = PieceRow(table.ctypes.data, VERSION.itemsize, VERSION.itemsize, self.num_blocks)
            self._scratch.append((self._agent.prepare(Pieces((row,))), table))

    def scratch_list(self, source: int) -> PieceList:
        """The descriptor list of a scratch table."""
        return self._scratch[source][0]

    def scratch(self, source: int) -> NDArray[np.uint64]:
        """The scratch table itself."""
        return self._scratch[source][1]

    def close(self) -> None:
        """Release all lists. Raises NixlError."""
        for pieces, _ in [*self._blocks.values(), *self._scratch]:
            self._agent.release_list(pieces)
        self._blocks.clear()


def cache_of(rank: RankMetadata) -> Region:
    """A rank's whole cache."""
    return Region(rank.cache_address, rank.num_blocks * rank.block_bytes, rank.cache_memory_type, rank.cache_device_id)


def version_table_of(rank: RankMetadata) -> Region:
    """A rank's whole version table."""
    return Region(rank.version_address, rank.num_blocks * VERSION.itemsize)


def blocks_of(rank: RankMetadata, spans: Iterable[tuple[int, int]]) -> Pieces:
    """Spans of a rank's blocks, one row per span: span ``s`` of block ``i`` is piece ``s * num_blocks + i``."""
    rows = tuple(
        PieceRow(rank.cache_address + offset, num_bytes, rank.block_bytes, rank.num_blocks)
        for offset, num_bytes in spans
    )
    return Pieces(rows, rank.cache_memory_type, rank.cache_device_id)


def versions_of(rank: RankMetadata) -> Pieces:
    """A rank's version table, one piece for each version."""
    return Pieces((PieceRow(rank.version_address, VERSION.itemsize, VERSION.itemsize, rank.num_blocks),))
