"""A read of several ranks, one of which dies: it fails, but only when nothing can be written any more."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from baton_serve.core.protocol.steps import CancelRead
from baton_serve.workers.rank_protocol.transfer_errors import NixlError
from baton_serve.workers.transfer.nixl.nixl_agent import NixlAgent
from baton_serve.workers.transfer.nixl.port import PieceList, TransferHandle, TransferState
from tests.kits.transfer.pair import PATIENCE_S, DecodeRank, Made, PeerProcess


class Watching(NixlAgent):
    """NIXL, and whether it has told us that a transfer failed, in whatever words."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lost = threading.Event()
        #: One for each transfer that was posted.
        self.posted = threading.Semaphore(0)

    def post_read(
        self, local: PieceList, local_ids: NDArray[np.int32], remote: PieceList, remote_ids: NDArray[np.int32]
    ) -> TransferHandle:
        transfer = super().post_read(local, local_ids, remote, remote_ids)
        self.posted.release()
        return transfer

    def state(self, transfer: TransferHandle) -> TransferState:
        try:
            state = super().state(transfer)
        except NixlError:
            self.lost.set()
            raise
        if state is TransferState.FAILED:
            self.lost.set()
        return state


@pytest.fixture
def made() -> Made[Watching]:
    """The agent of the rank."""
    return Made(Watching)


@pytest.fixture
def rank(made: Made[Watching]) -> Iterator[DecodeRank]:
    """A rank that reads both of two others."""
    with DecodeRank(make_agent=made) as reader:
        yield reader


@pytest.fixture
def halves() -> Iterator[tuple[PeerProcess, PeerProcess]]:
    """The two ranks of an engine, only over TCP: stopped, their reads stay in flight."""
    engine_id = secrets.token_hex(8)
    first = PeerProcess(tls="tcp", engine_id=engine_id, num_ranks=2)
    with first, PeerProcess(tls="tcp", engine_id=engine_id, rank=1, num_ranks=2) as second:
        yield first, second


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.slow
def test_a_read_ends_when_the_ranks_that_live_have_ended(
    rank: DecodeRank, made: Made[Watching], halves: tuple[PeerProcess, PeerProcess], cancelled: bool
) -> None:
    alive, dying = halves
    (agent,) = made.agents
    assert rank.connect(alive.metadata, dying.metadata) == ""
    assert rank.connect(rank.transfer.metadata()) == ""
    assert rank.read(alive, [1], [1]).outcome == "done"
    assert rank.bytes_of(1) == [1]
    alive.stop()
    dying.stop()
    hanging = rank.post(alive.engine_id, [2, 3], [2, 3], alive.promise)
    # Data and versions of both by the first read, and now data of both.
    assert all(agent.posted.acquire(timeout=PATIENCE_S) for _ in range(4 + 2))
    if cancelled:
        rank.transfer.submit(CancelRead(hanging))
    dying.kill()
    assert agent.lost.wait(PATIENCE_S)
    # Answered in order: had the read ended, its result would come first.
    rank.post(rank.engine_id, [9], [2], 0)
    assert "under another read" in rank.result().error
    alive.go_on()
    # Cancelled or not, whoever takes the engine for connected is told, and before the read is over.
    assert rank.lost().engine_id == alive.engine_id
    result = rank.result()
    assert (result.read_id, result.outcome) == (hanging, "cancelled" if cancelled else "failed")
    assert result.error
    rank.cache[2:4] = 0
    rank.post(rank.engine_id, [9], [5], 0)
    assert rank.result().outcome == "done"
    assert not rank.cache[2:4].any(), "written after the read had ended"
    assert "not connected" in rank.read(alive, [4], [4]).error


@pytest.mark.slow
def test_dead_before_the_read_it_fails_and_another_engine_is_read(
    rank: DecodeRank, halves: tuple[PeerProcess, PeerProcess]
) -> None:
    alive, dead = halves
    rank.connect(alive.metadata, dead.metadata)
    assert rank.read(alive, [1], [1], lease_id="both").outcome == "done"
    dead.kill()
    result = rank.read(alive, [4], [4], lease_id="half")
    assert (result.outcome, "PeerLost" in result.error, result.stale_blocks) == ("failed", True, [])
    assert "not connected" in rank.read(alive, [4], [4]).error
    with PeerProcess() as whole:
        assert rank.lost().engine_id == alive.engine_id
        assert rank.connect(whole.metadata) == ""
        assert rank.read(whole, [6], [4]).outcome == "done"
        assert rank.bytes_of(4) == [6]
    assert alive.event("sent")["lease_id"] == "both"


class Breaking(NixlAgent):
    """NIXL, whose next transfer to be over ends with an error that names nobody."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.breaks = False

    def state(self, transfer: TransferHandle) -> TransferState:
        state = super().state(transfer)
        if self.breaks and state is TransferState.DONE:
            self.breaks = False
            return TransferState.FAILED
        return state


def test_after_an_error_without_a_name_the_peer_is_met_anew() -> None:
    made = Made(Breaking)
    with DecodeRank(make_agent=made) as rank, PeerProcess() as peer:
        assert rank.connect(peer.metadata) == ""
        assert rank.read(peer, [1], [1]).outcome == "done"
        made.agents[0].breaks = True
        result = rank.read(peer, [2], [2])
        assert (result.outcome, "NIXL reports an error" in result.error) == ("failed", True)
        assert rank.lost().engine_id == peer.engine_id
        assert "not connected" in rank.read(peer, [2], [2]).error
        assert rank.connect(peer.metadata) == ""
        assert rank.read(peer, [3], [2]).outcome == "done"
        assert rank.bytes_of(2) == [3]
