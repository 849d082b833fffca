"""Engines of several ranks in this process, all blocks full of random bytes, with real NIXL agents. Not a test."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from baton_serve.core.protocol.handshake import RankMetadata, Shard
from baton_serve.core.protocol.steps import Disconnect, ReadResult, Sent
from baton_serve.workers.rank_protocol.spec import TransferOptions
from baton_serve.workers.transfer.nixl.nixl_agent import NixlAgent
from baton_serve.workers.transfer.nixl.port import PieceList, Pieces, Region, TransferAgent
from tests.kits.transfer.pair import DecodeRank
from tests.kits.transfer.shards import shards

#: The model of every group.
NUM_HEADS, NUM_LAYERS, CELL_BYTES = 12, 4, 48
#: Blocks of every rank. Those up to ``FIRST_FREE`` keep what they hold; into the others tests read.
NUM_BLOCKS, FIRST_FREE = 16, 8


class Group:
    """All ranks of one engine, as wide as ``tp`` x ``pp``, each part held by ``num_copies`` ranks."""

    def __init__(
        self,
        tp: int = 1,
        pp: int = 1,
        *,
        num_copies: int = 1,
        options: TransferOptions | None = None,
        make_agent: Callable[[str], TransferAgent] = NixlAgent,
    ) -> None:
        self.engine_id = secrets.token_hex(8)
        self.parts = shards(NUM_HEADS, NUM_LAYERS, tp, pp) * num_copies
        self.base = secrets.randbits(62)
        size = (NUM_BLOCKS, NUM_HEADS, NUM_LAYERS, CELL_BYTES)
        self.data = np.random.default_rng().integers(0, 256, size, dtype=np.uint8)
        self.ranks = [
            DecodeRank(
                options,
                make_agent,
                engine_id=self.engine_id,
                rank=rank,
                num_ranks=len(self.parts),
                num_blocks=NUM_BLOCKS,
                block_bytes=self._part(part).shape[1],
                shard=part,
            )
            for rank, part in enumerate(self.parts)
        ]
        self.num_reads = 0
        for rank, part in zip(self.ranks, self.parts, strict=True):
            rank.cache[:] = self._part(part)
            rank.versions.store([(block, self.base + block) for block in range(NUM_BLOCKS)])

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self.ranks:
            rank.transfer.close()

    @property
    def metadata(self) -> list[RankMetadata]:
        return [rank.transfer.metadata() for rank in self.ranks]

    def connect(self, other: Group) -> None:
        for rank in self.ranks:
            assert rank.connect(*other.metadata) == ""

    def disconnect(self, other: Group) -> None:
        for rank in self.ranks:
            rank.transfer.submit(Disconnect(other.engine_id))

    @property
    def promise(self) -> int:
        return self.base + NUM_BLOCKS - 1

    def post(self, other: Group, remote: list[int], local: list[int], lease_id: str) -> str:
        """Every rank reads the same blocks; the name of the read."""
        self.num_reads += 1
        for rank in self.ranks:
            assert rank.post(other.engine_id, remote, local, other.promise, lease_id=lease_id) == self.num_reads
        return f"{self.engine_id}-{self.num_reads}"

    def check_read(self, other: Group, remote: list[int], local: list[int], lease_id: str = "lease") -> str:
        """Every rank reads the blocks, to the byte; the name of the read."""
        name = self.post(other, remote, local, lease_id)
        assert [result.outcome for result in self.results()] == ["done"] * len(self.ranks)
        assert self.holds(other, remote, local)
        return name

    def results(self) -> list[ReadResult]:
        return [rank.result() for rank in self.ranks]

    def sent(self) -> list[Sent]:
        """What each rank hears next."""
        return [rank.sent() for rank in self.ranks]

    def holds(self, other: Group, remote: list[int], local: list[int]) -> bool:
        """Are these blocks of ours now, to the byte, those blocks of the other's, and is all else as it was?"""
        expected = self.data.copy()
        expected[local] = other.data[remote]
        pairs = zip(self.ranks, self.parts, strict=True)
        return all(np.array_equal(rank.cache, self._part(part, expected)) for rank, part in pairs)

    def restore(self) -> None:
        for rank, part in zip(self.ranks, self.parts, strict=True):
            rank.cache[:] = self._part(part)

    def _part(self, part: Shard, data: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        heads, layers = slice(part.first_head, part.last_head), slice(part.first_layer, part.last_layer)
        return (self.data if data is None else data)[:, heads, layers].reshape(NUM_BLOCKS, -1)


class Ledger(NixlAgent):
    """NIXL, and an account of what it has not been given back."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.num_regions = 0
        self.remotes: set[str] = set()
        #: Descriptor lists of our own memory, and of that of others.
        self.num_lists_here = 0
        self.num_lists_there = 0
        self._there: set[int] = set()

    def register(self, region: Region) -> None:
        super().register(region)
        self.num_regions += 1

    def add_remote(self, metadata: bytes) -> str:
        name = super().add_remote(metadata)
        self.remotes.add(name)
        return name

    def remove_remote(self, name: str) -> None:
        super().remove_remote(name)
        self.remotes.remove(name)

    def prepare(self, pieces: Pieces, owner: str | None = None) -> PieceList:
        prepared = super().prepare(pieces, owner)
        if owner is None:
            self.num_lists_here += 1
        else:
            self._there.add(id(prepared))
            self.num_lists_there += 1
        return prepared

    def release_list(self, pieces: PieceList) -> None:
        super().release_list(pieces)
        if id(pieces) in self._there:
            self._there.remove(id(pieces))
            self.num_lists_there -= 1
        else:
            self.num_lists_here -= 1
