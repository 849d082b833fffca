"""Versions change before their blocks do, in blocks that a read fills as in those that a step computes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baton_serve.workers.transfer.nixl.nixl_agent import NixlAgent
from baton_serve.workers.transfer.nixl.port import PieceList, TransferHandle
from tests.kits.transfer.pair import DecodeRank, PeerProcess


class Reader(DecodeRank):
    """A rank, and the version that block 7 had at each post of a transfer."""

    def __init__(self) -> None:
        self.found: list[int] = []
        super().__init__(make_agent=self._make)

    def _make(self, name: str) -> NixlAgent:
        reader = self

        class Looking(NixlAgent):
            def post_read(
                self, local: PieceList, local_ids: NDArray[np.int32], remote: PieceList, remote_ids: NDArray[np.int32]
            ) -> TransferHandle:
                reader.found.append(int(reader.versions.array[7]))
                return super().post_read(local, local_ids, remote, remote_ids)

        return Looking(name)


def test_a_read_stores_versions_before_it_is_posted() -> None:
    with PeerProcess() as peer, Reader() as reader:
        assert reader.connect(peer.metadata) == ""
        assert reader.read(peer, [1], [7], fresh=[(7, 12)]).outcome == "done"
        assert reader.found == [12, 12], "one for the data, one for the versions"
