"""The version tables of remote ranks, and where they are read to. Used in the agent's thread only.

A transfer costs about a microsecond for each descriptor and hardly anything for each byte, so versions are read by the
page. What is behind the last full page is read whole, too: as single versions, which NIXL joins because they are
neighbours on both sides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.workers.transfer.nixl.port import PieceList, PieceRow, Pieces, Region, TransferAgent
from baton_serve.workers.transfer.versions import VERSION

#: Versions that one descriptor reads: 4 KiB.
PAGE_VERSIONS = 512


def version_table_of(rank: RankMetadata) -> Region:
    return Region(rank.version_address, rank.num_blocks * VERSION.itemsize)


def versions_of(rank: RankMetadata) -> Pieces:
    """A rank's version table: its full pages, and then each of the versions that are left."""
    num_pages, num_left = divmod(rank.num_blocks, PAGE_VERSIONS)
    rows = (
        _row(rank.version_address, PAGE_VERSIONS, num_pages),
        _row(rank.version_address + num_pages * PAGE_VERSIONS * VERSION.itemsize, 1, num_left),
    )
    return Pieces(tuple(row for row in rows if row.count))


class ScratchTable:
    """Registered memory for a version table of at most ``capacity`` versions, a multiple of ``PAGE_VERSIONS``.

    The version of remote block ``i`` is read to ``array[i]``. ``pieces`` are all pages, and then all single versions.
    The constructor raises NixlError.
    """

    def __init__(self, agent: TransferAgent, array: NDArray[np.uint64]) -> None:
        self.capacity = len(array)
        self.array = array
        address = int(array.ctypes.data)
        rows = _row(address, PAGE_VERSIONS, self.capacity // PAGE_VERSIONS), _row(address, 1, self.capacity)
        self.pieces: PieceList = agent.prepare(Pieces(rows))

    def pieces_for(
        self, block_ids: NDArray[np.int32], num_versions: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The pieces here and in ``versions_of`` a table of ``num_versions`` that have the versions of these blocks."""
        num_pages, num_left = divmod(num_versions, PAGE_VERSIONS)
        # The pages are few, and a call of numpy takes as long as a set of some dozen blocks.
        found = sorted(set((block_ids // PAGE_VERSIONS).tolist()))
        pages = np.array([page for page in found if page < num_pages], dtype=np.int32)
        if num_pages not in found:
            return pages, pages
        left = np.arange(num_left, dtype=np.int32)
        here = left + np.int32(self.capacity // PAGE_VERSIONS + num_pages * PAGE_VERSIONS)
        return np.concatenate((pages, here)), np.concatenate((pages, left + np.int32(num_pages)))


class ScratchTables:
    """All scratch tables. A table belongs to one transfer until this has ended, however long that takes.

    If two transfers shared a table, one could find there what the other has read earlier, and take it for its own.
    """

    def __init__(self, agent: TransferAgent) -> None:
        self._agent = agent
        #: Registered memory has to outlive the agent, so tables are kept.
        self._tables: list[ScratchTable] = []
        self._free: list[ScratchTable] = []
        #: Registered memory by its number of versions, for which no list could be prepared; the next table takes it.
        self._without_list: dict[int, NDArray[np.uint64]] = {}

    def reserve(self, num_tables: int, num_versions: int) -> None:
        """Make sure that so many tables have room for so many versions. Raises NixlError."""
        while sum(table.capacity >= num_versions for table in self._tables) < num_tables:
            self._free.append(self._new(num_versions))

    def take(self, num_versions: int) -> ScratchTable:
        """A table with room for so many versions; return it with ``give_back``. Raises NixlError."""
        for table in self._free:
            if table.capacity >= num_versions:
                self._free.remove(table)
                return table
        return self._new(num_versions)

    def give_back(self, table: ScratchTable) -> None:
        """Return a table to which nothing is written any more."""
        self._free.append(table)

    def close(self) -> None:
        """Release the lists. Raises NixlError."""
        for table in self._tables:
            self._agent.release_list(table.pieces)

    def _new(self, num_versions: int) -> ScratchTable:
        # Few sizes, so that peers of other sizes can use the same tables.
        capacity = max(PAGE_VERSIONS, 1 << (num_versions - 1).bit_length())
        if capacity not in self._without_list:
            self._without_list[capacity] = self._register(capacity)
        self._tables.append(ScratchTable(self._agent, self._without_list[capacity]))
        del self._without_list[capacity]
        return self._tables[-1]

    def _register(self, capacity: int) -> NDArray[np.uint64]:
        array = np.zeros(capacity, dtype=VERSION)
        # Registered after the agent's metadata was taken, so that no peer can read or write it.
        self._agent.register(Region(int(array.ctypes.data), array.nbytes))
        return array


def _row(address: int, num_versions: int, count: int) -> PieceRow:
    num_bytes = num_versions * VERSION.itemsize
    return PieceRow(address, num_bytes, num_bytes, count)
