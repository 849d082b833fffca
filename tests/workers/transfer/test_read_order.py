"""In which order data and versions are read and stored, and who learns first that a read has ended."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from baton_serve.workers.rank_protocol.spec import TransferOptions
from baton_serve.workers.transfer.nixl.nixl_agent import NixlAgent
from baton_serve.workers.transfer.nixl.port import PieceList, TransferHandle
from tests.kits.patience import PATIENCE_S
from tests.kits.transfer.pair import BLOCK_BYTES, NUM_BLOCKS, DecodeRank, PeerProcess

#: What is noted of a transfer that reads versions, and of a notification.
VERSIONS, TOLD = "versions", "told"


class Reader(DecodeRank):
    """A rank that reads block by block, and what its agent does. It posts only while ``may_go`` is set."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.may_go.set()
        self.noted: list[object] = []
        #: The version that block 7 had at each post of a transfer.
        self.found: list[int] = []
        super().__init__(TransferOptions(piece_bytes=BLOCK_BYTES), make_agent=self._make)

    def _make(self, name: str) -> NixlAgent:
        reader = self

        class Noting(NixlAgent):
            def post_read(
                self, local: PieceList, local_ids: NDArray[np.int32], remote: PieceList, remote_ids: NDArray[np.int32]
            ) -> TransferHandle:
                # The table is shorter than a page, so all of its versions are read.
                reader.found.append(int(reader.versions.array[7]))
                reader.noted += [VERSIONS] if len(local_ids) == NUM_BLOCKS else local_ids.tolist()
                assert reader.may_go.wait(PATIENCE_S)
                return super().post_read(local, local_ids, remote, remote_ids)

            def notify(self, peer: str, payload: bytes) -> None:
                reader.noted.append((TOLD, reader.events.qsize()))
                super().notify(peer, payload)

        return Noting(name)


def test_over_shared_memory_versions_are_read_before_the_next_read_gets_its_turn() -> None:
    with PeerProcess() as peer, Reader() as reader:
        assert reader.connect(peer.metadata) == ""
        # The first read of a connection does not end in the call that posts it.
        assert reader.read(peer, [0], [10]).outcome == "done"
        reader.noted.clear()
        reader.may_go.clear()
        for block in (11, 12):
            reader.post(peer.engine_id, [block], [block], peer.promise)
        reader.may_go.set()
        assert [reader.result().outcome, reader.result().outcome] == ["done", "done"]
        posted = [each for each in reader.noted if not isinstance(each, tuple)]
        assert posted == [11, VERSIONS, 12, VERSIONS]


def test_the_end_of_a_read_is_reported_before_the_peer_is_told() -> None:
    with PeerProcess() as peer, Reader() as reader:
        assert reader.connect(peer.metadata) == ""
        reader.post(peer.engine_id, [1], [11], peer.promise)
        assert peer.event("sent")["lease_id"] == "ab"
        assert reader.noted[-1] == (TOLD, 1)
        assert reader.result().outcome == "done"


def test_a_read_stores_versions_before_it_is_posted() -> None:
    with PeerProcess() as peer, Reader() as reader:
        assert reader.connect(peer.metadata) == ""
        assert reader.read(peer, [1], [7], fresh=[(7, 12)]).outcome == "done"
        assert reader.found == [12, 12], "one for the data, one for the versions"
