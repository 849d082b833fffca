"""Blocks read between two real processes: exact, fenced, cancelled, broken. Memory is numpy; NIXL is NIXL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from baton_serve.core.protocol.steps import CancelRead, Connected, Disconnect, RankFailed, Sent
from baton_serve.workers.rank_protocol.spec import TransferOptions
from baton_serve.workers.rank_protocol.transfer_errors import BackendFailedError, PeerLostError, PeerUnknownError
from baton_serve.workers.transfer.nixl.nixl_agent import NixlAgent
from baton_serve.workers.transfer.nixl.port import TransferHandle, TransferState
from bench.block_reads.memory import can_read
from tests.kits.patience import PATIENCE_S
from tests.kits.transfer.pair import BLOCK_BYTES, NUM_BLOCKS, DecodeRank, PeerProcess


@pytest.fixture(scope="module")
def peer() -> Iterator[PeerProcess]:
    """A prefill rank that no test changes."""
    with PeerProcess() as process:
        yield process


@pytest.fixture
def rank() -> Iterator[DecodeRank]:
    with DecodeRank() as decode:
        yield decode


@pytest.fixture
def slow_peer() -> Iterator[PeerProcess]:
    """Only over TCP, where it has to take part in every read: stopped, its reads stay in flight."""
    with PeerProcess(tls="tcp") as process:
        yield process


def test_data_arrives_exactly_and_the_peer_is_told(rank: DecodeRank, peer: PeerProcess) -> None:
    assert rank.connect(peer.metadata) == ""
    result = rank.read(peer, [5, 63, 0, 17], [2, 3, 50, 1], lease_id="feed01")
    assert (result.outcome, result.num_bytes, result.error) == ("done", 4 * BLOCK_BYTES, "")
    assert (result.num_descriptors, result.stale_blocks) == (4, [])
    assert rank.bytes_of(2, 3, 50, 1) == [5, 63, 0, 17]
    assert rank.bytes_of(0, 4, 49, 51) == [0, 0, 0, 0]
    assert peer.event("sent")["lease_id"] == "feed01"


def test_nothing_to_read_is_done_and_told(rank: DecodeRank, peer: PeerProcess) -> None:
    rank.connect(peer.metadata)
    result = rank.read(peer, [], [], lease_id="none")
    assert (result.outcome, result.num_bytes) == ("done", 0)
    assert peer.event("sent")["lease_id"] == "none"


def test_the_fence_refuses_what_was_overwritten_and_the_peer_is_told(rank: DecodeRank) -> None:
    with PeerProcess() as own:
        rank.connect(own.metadata)
        own.overwrite(9, own.base + 500, 77)
        result = rank.read(own, [8, 9], [1, 2], lease_id="stale1")
        assert (result.outcome, result.stale_blocks) == ("stale", [2])
        assert own.event("sent")["lease_id"] == "stale1"
        assert rank.read(own, [8, 9], [1, 2], own.base + 500).outcome == "done"
        assert rank.bytes_of(1, 2) == [8, 77]


def test_without_the_fence_another_prompts_data_passes() -> None:
    with DecodeRank(TransferOptions(unsafe_disable_fence=True)) as careless, PeerProcess() as own:
        careless.connect(own.metadata)
        own.overwrite(9, own.base + 500, 77)
        assert careless.read(own, [8, 9], [1, 2]).outcome == "done"
        assert careless.bytes_of(1, 2) == [8, 77]


def test_what_is_done_is_right_while_the_peer_overwrites_all_the_time(rank: DecodeRank) -> None:
    """Reads race with overwriting; every one that the fence lets through has exactly the promised bytes."""
    with PeerProcess() as own:
        rank.connect(own.metadata)
        own.tell("churn")
        outcomes: Counter[str] = Counter()
        while min(outcomes["done"], outcomes["stale"]) < 10 and outcomes.total() < 1000:
            turn = outcomes.total()
            own.tell("promise")
            promised = own.event("promise")
            blocks = [turn % NUM_BLOCKS, (turn * 7 + 3) % NUM_BLOCKS]
            result = rank.read(own, blocks, [0, 1], promised["promise"])
            outcomes[result.outcome] += 1
            own.event("sent")
            if result.outcome == "done":
                assert rank.bytes_of(0, 1) == [promised["versions"][b] % 251 for b in blocks]
        assert set(outcomes) == {"done", "stale"}


def test_a_restarted_engine_never_passes_for_the_old_one(rank: DecodeRank) -> None:
    """Even with the same engine id and the same blocks: its versions start elsewhere, here below the old ones."""
    with PeerProcess(base=2**62) as first:
        rank.connect(first.metadata)
        assert rank.read(first, [3], [3]).outcome == "done"
    with PeerProcess(base=2**61, engine_id=first.engine_id) as second:
        assert rank.connect(second.metadata) == ""
        assert rank.read(second, [3], [3], first.promise).outcome == "stale"
        assert rank.read(second, [3], [3]).outcome == "done"


@pytest.mark.slow
def test_a_dead_peer_fails_the_read_and_can_be_met_again(rank: DecodeRank) -> None:
    with PeerProcess() as first:
        rank.connect(first.metadata)
        assert rank.read(first, [3], [3]).outcome == "done"
        first.kill()
        result = rank.read(first, [4], [4])
        assert (result.outcome, "PeerLost" in result.error) == ("failed", True)
        assert rank.lost() == Connected(first.engine_id, result.error)
        assert "not connected" in rank.read(first, [4], [4]).error
    with PeerProcess() as second:
        assert rank.connect(second.metadata) == ""
        assert rank.read(second, [4], [4]).outcome == "done"


def test_a_peer_killed_during_the_read_ends_it_and_returns_the_blocks(
    rank: DecodeRank, slow_peer: PeerProcess, peer: PeerProcess
) -> None:
    rank.connect(slow_peer.metadata)
    rank.connect(peer.metadata)
    assert rank.read(slow_peer, [1], [1]).outcome == "done"
    slow_peer.stop()
    hanging = rank.post(slow_peer.engine_id, [2, 3], [2, 3], slow_peer.promise)
    assert "under another read" in rank.read(peer, [2], [2]).error
    slow_peer.kill()
    result = rank.result()
    assert (result.read_id, result.outcome) == (hanging, "failed")
    assert rank.read(peer, [2], [2], lease_id="k").outcome == "done"
    assert peer.event("sent")["lease_id"] == "k"


def test_a_read_over_shared_memory_needs_nothing_of_the_peer(rank: DecodeRank) -> None:
    """Not even after a notification, which the peer has to take off its connection."""
    with PeerProcess() as own:
        rank.connect(own.metadata)
        if not can_read(own.pid, own.metadata.cache_address):
            pytest.skip("the kernel lets no process read another one's memory here")
        assert rank.read(own, [1], [1], lease_id="first").outcome == "done"
        own.stop()
        assert rank.read(own, [2], [2]).outcome == "done"
        assert rank.read(own, [3], [3]).outcome == "done"
        own.go_on()
        assert own.event("sent")["lease_id"] == "first"


@pytest.mark.slow
def test_a_cancelled_read_keeps_its_blocks_until_nixl_has_ended(
    rank: DecodeRank, slow_peer: PeerProcess, peer: PeerProcess
) -> None:
    rank.connect(slow_peer.metadata)
    rank.connect(peer.metadata)
    assert rank.read(slow_peer, [1], [1], lease_id="first").outcome == "done"
    slow_peer.event("sent")
    slow_peer.stop()
    hanging = rank.post(slow_peer.engine_id, [2], [2], slow_peer.promise)
    rank.transfer.submit(CancelRead(hanging))
    # Answered in order: had the cancelled read ended, its result would come first.
    assert "under another read" in rank.read(peer, [2], [2]).error
    slow_peer.go_on()
    result = rank.result()
    assert (result.read_id, result.outcome) == (hanging, "cancelled")
    rank.transfer.submit(CancelRead(hanging))
    # The peer was not told of the cancelled one: the next thing it hears is this.
    assert rank.read(slow_peer, [5], [2], lease_id="after").outcome == "done"
    assert slow_peer.event("sent")["lease_id"] == "after"


@pytest.mark.slow
def test_disconnect_waits_for_the_reads_in_flight(rank: DecodeRank, slow_peer: PeerProcess) -> None:
    rank.connect(slow_peer.metadata)
    assert rank.read(slow_peer, [1], [1]).outcome == "done"
    slow_peer.stop()
    hanging = rank.post(slow_peer.engine_id, [2], [2], slow_peer.promise)
    rank.transfer.submit(Disconnect(slow_peer.engine_id))
    assert "not connected" in rank.read(slow_peer, [3], [3]).error
    assert "not ended" in rank.connect(msgspec.structs.replace(slow_peer.metadata))
    slow_peer.go_on()
    result = rank.result()
    assert (result.read_id, result.outcome) == (hanging, "done")
    assert "not connected" in rank.read(slow_peer, [3], [3]).error
    assert rank.connect(slow_peer.metadata) == ""
    assert rank.read(slow_peer, [3], [3]).outcome == "done"


def test_many_reads_at_once_in_many_pieces(peer: PeerProcess) -> None:
    options = TransferOptions(piece_bytes=BLOCK_BYTES, window=3)
    with DecodeRank(options) as rank:
        rank.connect(peer.metadata)
        plans = {}
        for start in range(0, NUM_BLOCKS, 4):
            local = [start, start + 1, start + 2, start + 3]
            remote = [NUM_BLOCKS - 1 - block for block in local]
            plans[rank.post(peer.engine_id, remote, local, peer.promise, lease_id=f"many{start}")] = local
        results = [rank.result() for _ in plans]
        assert {result.read_id: result.outcome for result in results} == dict.fromkeys(plans, "done")
        assert rank.bytes_of(*range(NUM_BLOCKS)) == list(reversed(range(NUM_BLOCKS)))
        told = {peer.event("sent")["lease_id"] for _ in plans}
        assert told == {f"many{start}" for start in range(0, NUM_BLOCKS, 4)}


@pytest.mark.parametrize(
    ("remote", "local", "promise", "words"),
    [
        ([NUM_BLOCKS], [0], 1, "remote block id"),
        ([-1], [0], 1, "remote block id"),
        ([0], [NUM_BLOCKS], 1, "local block id"),
        ([0], [-1], 1, "local block id"),
        ([0, 1], [4, 4], 1, "named twice"),
        ([0, 1], [4], 1, "lengths differ"),
        ([0], [4], -1, "unsigned 64-bit"),
        ([0], [4], 2**64, "unsigned 64-bit"),
    ],
)
def test_reads_outside_of_either_cache_are_refused(
    rank: DecodeRank, peer: PeerProcess, remote: list[int], local: list[int], promise: int, words: str
) -> None:
    rank.connect(peer.metadata)
    result = rank.read(peer, remote, local, promise)
    assert result.outcome == "failed"
    assert words in result.error
    assert not rank.cache.any()


def test_an_engine_can_read_from_itself(rank: DecodeRank) -> None:
    """A router may send both halves of a request to one worker."""
    rank.cache[3] = 9
    rank.versions.store([(3, 30)])
    assert rank.connect(rank.transfer.metadata()) == ""
    read_id = rank.post(rank.engine_id, [3], [5], 30, lease_id="own")
    assert rank.result().outcome == "done"
    assert rank.bytes_of(5) == [9]
    assert rank.sent() == Sent("own", f"{rank.engine_id}-{read_id}")


def test_what_strangers_send_is_dropped(peer: PeerProcess) -> None:
    stranger = NixlAgent("stranger")
    name = stranger.add_remote(peer.metadata.agent_metadata)
    for payload in (b"\xff\xfe:1:e-1:0", b"x" * 100_000, b"\x00", b"vllm:1"):
        stranger.notify(name, payload)
    stranger.notify(name, b"the-last-one:1:e-1:0")
    # Only its own calls make the stranger's messages leave.
    assert peer.event("sent", stranger.notifications)["lease_id"] == "the-last-one"
    stranger.remove_remote(name)
    stranger.close()


def test_metadata_that_lies_is_refused(rank: DecodeRank, peer: PeerProcess) -> None:
    true = peer.metadata
    for lie, words in (
        (msgspec.structs.replace(true, agent_metadata=b"garbage"), ""),
        (msgspec.structs.replace(true, agent_name="somebody"), "somebody"),
        (msgspec.structs.replace(true, num_blocks=true.num_blocks * 1000), ""),
        (msgspec.structs.replace(true, cache_address=0), "impossible"),
        (msgspec.structs.replace(true, version_address=2**64 - 8), "impossible"),
        (msgspec.structs.replace(true, cache_memory_type="FILE"), "memory"),
        (msgspec.structs.replace(true, engine_id="other"), "other"),
    ):
        error = rank.connect(lie, engine_id=true.engine_id)
        assert error
        assert words in error
    assert rank.connect(true) == ""
    assert rank.read(peer, [6], [6], lease_id="truth").outcome == "done"
    assert peer.event("sent")["lease_id"] == "truth"


def test_two_engines_cannot_share_an_agent(rank: DecodeRank, peer: PeerProcess) -> None:
    """Adding an agent's name again would replace it under the reads in flight."""
    assert rank.connect(peer.metadata) == ""
    assert "another engine" in rank.connect(msgspec.structs.replace(peer.metadata, engine_id="second"))
    own = msgspec.structs.replace(peer.metadata, engine_id="third", agent_name=rank.transfer.metadata().agent_name)
    assert "another engine" in rank.connect(own)


class Forgetful(NixlAgent):
    """NIXL after a bug of ours: it does not know the transfer any more."""

    def state(self, transfer: TransferHandle) -> TransferState:
        raise PeerUnknownError("invalidated during transfer")


class Mute(NixlAgent):
    """Reads, and then finds that the peer has gone."""

    is_mute = True

    def notify(self, peer: str, payload: bytes) -> None:
        if self.is_mute:
            raise PeerLostError("gone")
        super().notify(peer, payload)


def test_a_peer_lost_after_the_read_is_reported_and_can_be_met_again(
    peer: PeerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DecodeRank(make_agent=Mute) as rank:
        assert rank.connect(peer.metadata) == ""
        rank.post(peer.engine_id, [0], [0], peer.promise)
        assert rank.lost() == Connected(peer.engine_id, "PeerLostError: gone")
        assert rank.result().outcome == "done"
        assert rank.connect(peer.metadata) == ""
        monkeypatch.setattr(Mute, "is_mute", False)
        assert rank.read(peer, [0], [0], lease_id="cafe").outcome == "done"
        assert peer.event("sent")["lease_id"] == "cafe"


def test_a_read_whose_end_cannot_be_known_is_the_end_of_the_rank(peer: PeerProcess) -> None:
    with DecodeRank(make_agent=Forgetful) as rank:
        rank.connect(peer.metadata)
        rank.post(peer.engine_id, [0], [0], peer.promise)
        event = rank.events.get(timeout=PATIENCE_S)
        assert isinstance(event, RankFailed)
        assert "invalidated" in event.error


def test_without_an_agent_there_is_no_rank() -> None:
    def no_plugin(name: str) -> NixlAgent:
        raise BackendFailedError(f"no plugin for {name}")

    with pytest.raises(BackendFailedError, match="no plugin"):
        DecodeRank(make_agent=no_plugin)
