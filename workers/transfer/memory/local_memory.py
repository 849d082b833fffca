"""The local side of every read: the cache, and where versions are read to. Used in the agent's thread only."""

from __future__ import annotations

from collections.abc import Iterable

from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.workers.transfer.memory.version_tables import ScratchTables
from baton_serve.workers.transfer.nixl.port import PieceList, PieceRow, Pieces, Region, TransferAgent

#: Byte ranges of one block: (offset, length).
Spans = tuple[tuple[int, int], ...]


class LocalMemory:
    """Descriptor lists of local memory.

    Remote engines with the same split share lists of the cache; the last of these engines releases a list. ``scratch``
    is to be closed by who owns this.
    """

    def __init__(self, agent: TransferAgent, local: RankMetadata) -> None:
        self._agent = agent
        self._local = local
        self.num_blocks = local.num_blocks
        #: For each way to split a block: the descriptor list, and the number of remote engines that use it.
        self._blocks: dict[Spans, tuple[PieceList, int]] = {}
        self.scratch = ScratchTables(agent)

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


def cache_of(rank: RankMetadata) -> Region:
    return Region(rank.cache_address, rank.num_blocks * rank.block_bytes, rank.cache_memory_type, rank.cache_device_id)


def blocks_of(rank: RankMetadata, spans: Iterable[tuple[int, int]]) -> Pieces:
    """Spans of a rank's blocks, one row per span: span ``s`` of block ``i`` is piece ``s * num_blocks + i``."""
    rows = tuple(
        PieceRow(rank.cache_address + offset, num_bytes, rank.block_bytes, rank.num_blocks)
        for offset, num_bytes in spans
    )
    return Pieces(rows, rank.cache_memory_type, rank.cache_device_id)
