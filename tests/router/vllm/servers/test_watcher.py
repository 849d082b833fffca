"""What becomes known of vLLM servers while they serve, start, stop and change."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.pool.health import MAX_MODELS
from baton_serve.router.pool.model_card import ModelFacts
from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from baton_serve.router.vllm.leases.side_channel_facts import SideChannelReason
from baton_serve.router.vllm.servers.watcher import ROUNDS
from tests.kits.router.cluster import eventually
from tests.router.vllm.servers.conftest import Watched, known


async def rounds(watched: Watched, count: int = 2) -> None:
    """Until ``count`` more rounds of questions were answered for sure, by one server or another."""
    before = watched.outcomes.total()
    await eventually(lambda: watched.outcomes.total() >= before + count * len(watched.servers))


async def test_a_pair_becomes_known_and_is_paired(watched: Watched) -> None:
    p, d = await watched.pair()
    await known(p, d)
    assert (p.version, p.compatibility_hash, p.engine_id) == ("0.32.0", "hash", f"engine of {watched.servers[0].port}")
    assert p.facts == {"tiny": ModelFacts(root="/model", max_model_len=4096)}
    assert (p.usage.block_size, p.usage.num_blocks, p.problem) == (16, 100, "")
    assert p.weights_fingerprint == d.weights_fingerprint != ""
    assert watched.pool.route("tiny").readers(p) == (d,)
    assert watched.channels.asked.count(("127.0.0.1", watched.servers[0].port)) == 1


async def test_the_engine_of_a_p_is_met_and_again_when_another_process_has_its_port(watched: Watched) -> None:
    p, d = await watched.server(), await watched.server()
    for number, server in enumerate(watched.servers):
        watched.channels.serve(server.port, engine_id=f"e{number}")
    await known(*watched.pool.add_static([p.address], [d.address]))
    assert watched.channels.met == [RemoteEngine(engine_id="e0", host="127.0.0.1", port=p.port)]
    watched.channels.serve(p.port, engine_id="e2")
    await p.restart()
    await eventually(lambda: len(watched.channels.met) > 1)
    assert watched.channels.met[-1].engine_id == "e2"
    assert "e0" in watched.gone


async def test_the_load_of_a_server_becomes_its_room(watched: Watched) -> None:
    server = await watched.server()
    (worker,) = watched.pool.add_static([], [f"vllm+{server.url}?max_num_seqs=10"])
    await known(worker)
    assert (worker.usage.limit, worker.usage.room, worker.usage.spare_blocks) == (10, 10, 100)
    server.numbers.running, server.numbers.deferred, server.numbers.usage = [6], [1], [0.75]
    await eventually(lambda: (worker.usage.room, worker.usage.spare_blocks) == (3, 25))
    server.numbers.waiting = [2]
    await eventually(lambda: worker.usage.room == -2)
    server.numbers.running, server.numbers.waiting, server.numbers.deferred = [0], [0], [0]
    await eventually(lambda: worker.usage.room == 10)


async def test_room_that_a_server_has_again_is_told(watched: Watched) -> None:
    p, _ = await watched.pair()
    await known(p)
    server = watched.servers[0]
    server.numbers.waiting = [1]
    await eventually(lambda: p.usage.load.waiting == 1)
    told: list[int] = []
    watched.pool.on_room.append(lambda: told.append(p.usage.load.waiting))
    await rounds(watched)
    assert told == [], "nothing has changed"
    server.numbers.waiting = [0]
    await eventually(lambda: told == [0])


async def test_ranks_of_data_parallelism_are_one_worker(watched: Watched) -> None:
    server = await watched.server()
    numbers = server.numbers
    numbers.running, numbers.waiting, numbers.deferred, numbers.usage = [1, 2], [0, 0], [0, 0], [0.5, 0.0]
    (worker,) = watched.pool.add_static([server.address], [server.address])
    await known(worker)
    assert (worker.usage.limit, worker.usage.occupied, worker.usage.num_blocks, worker.usage.spare_blocks) == (
        512,
        3,
        200,
        150,
    )
    assert watched.pool.route("tiny").single


async def test_all_ranks_of_a_server_that_is_gone_are_forgotten(watched: Watched) -> None:
    server = await watched.server()
    numbers = server.numbers
    numbers.running, numbers.waiting, numbers.deferred, numbers.usage = [0, 0], [0, 0], [0, 0], [0.0, 0.0]
    watched.channels.serve(server.port, engine_id="old_dp0")
    (worker,) = watched.pool.add_static([server.address], [server.address])
    await known(worker)
    replaced: list[str] = []
    watched.pool.on_replaced.append(replaced.append)
    watched.gone.clear()
    watched.channels.serve(server.port, engine_id="new_dp0")
    await server.restart()
    await eventually(lambda: worker.engine_id == "new_dp0")
    assert watched.gone == replaced == ["old_dp0", "old_dp1"]
    watched.pool.remove_static(worker)
    assert watched.gone[2:] == ["new_dp0", "new_dp1"]


async def test_adapters_come_and_go_while_a_server_serves(watched: Watched) -> None:
    p, d = await watched.pair()
    await known(p, d)
    for server in watched.servers:
        server.models["tuned"] = ("/lora", "tiny")
    await eventually(lambda: watched.pool.models() == ["tiny", "tuned"] and not (p.problem or d.problem))
    assert watched.pool.facts("tuned").parent == "tiny"
    assert watched.pool.route("tuned").readers(p) == (d,)
    del watched.servers[1].models["tuned"]
    await eventually(lambda: "tuned" in p.problem)
    assert "no decode worker does" in p.problem
    with pytest.raises(ApiError, match="No decode worker"):
        watched.pool.route("tuned")


async def test_a_server_that_starts_later_is_found(watched: Watched) -> None:
    server = await watched.server()
    await server.stop()
    (worker,) = watched.pool.add_static([server.address], [server.address])
    await eventually(lambda: not worker.standing.healthy)
    assert f"No vLLM serves at {server.url}" in worker.problem
    with pytest.raises(ApiError, match="1 have not said"):
        watched.pool.route("tiny")
    await server.start()
    await eventually(lambda: worker.takes_work and worker.models == ("tiny",))
    assert worker.problem == ""


async def test_a_server_that_dies_is_left_out_until_it_is_back(watched: Watched) -> None:
    p, d = await watched.pair()
    await known(p, d)
    await watched.servers[0].stop()
    await eventually(lambda: not p.takes_work)
    assert d.takes_work
    await watched.servers[0].start()
    await eventually(lambda: p.takes_work)
    assert (p.problem, p.compatibility_hash) == ("", "hash")


async def test_a_server_whose_engine_is_dead_is_left_out(watched: Watched) -> None:
    p, _ = await watched.pair()
    await known(p)
    watched.servers[0].health = 503
    await eventually(lambda: not p.takes_work)
    assert "/health is answered with status 503" in p.problem
    watched.servers[0].health = 200
    await eventually(lambda: p.takes_work)


async def test_a_worker_that_a_request_found_dead_is_used_only_when_its_engine_lives(watched: Watched) -> None:
    """Its other pages are answered all the same."""
    p, _ = await watched.pair()
    await known(p)
    watched.servers[0].health = 503
    watched.pool.unreachable(p)
    await rounds(watched, 1)
    assert not p.takes_work
    watched.servers[0].health = 200
    await eventually(lambda: p.takes_work)


async def test_load_is_asked_for_more_often_than_the_rest(watched: Watched) -> None:
    p, _ = await watched.pair()
    await known(p)
    await rounds(watched, 3 * ROUNDS)
    asked = Counter(watched.servers[0].asked)
    assert asked["/version"] == 1
    assert asked["/health"] - 1 <= asked["/v1/models"] <= asked["/metrics"] / ROUNDS + 2


async def test_a_page_that_is_too_long_is_read_as_far_as_that(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    p, d = await watched.pair()
    watched.servers[0].numbers.running = [3]
    watched.servers[0].numbers.others = 'other{engine="0"} 1\n' * 15_000
    with caplog.at_level(logging.WARNING, logger="baton.router"):
        await known(p, d)
        await rounds(watched, 3)
    assert p.usage.load is not None and p.usage.load.running == 3
    assert (p.usage.num_blocks, p.usage.block_size) == (0, 0), "that comes later on the page"
    assert watched.pool.route("tiny").readers(p) == (d,)
    assert "256 KB" in p.problem
    assert [record.getMessage() for record in caplog.records].count(f"worker {p.worker_id}: {p.problem}") == 1


@pytest.mark.parametrize(
    "models", [{f"m{number}": ("/m", None) for number in range(MAX_MODELS + 1)}, {"m" * 257: ("/m", None)}]
)
async def test_a_list_of_models_has_a_bound(watched: Watched, models: dict[str, tuple[str, None]]) -> None:
    server = await watched.server()
    server.models = models
    (worker,) = watched.pool.add_static([server.address], [server.address])
    await eventually(lambda: str(MAX_MODELS) in worker.problem)
    assert not worker.models


async def test_another_engine_at_the_same_address_is_noticed(watched: Watched) -> None:
    """Its cache is empty, its blocks are others, and it may be of another version."""
    p, d = await watched.pair()
    await known(p, d)
    server, old = watched.servers[0], p.engine_id
    watched.gone.clear()
    watched.channels.serve(server.port, "other hash", "other engine", has_fence=True)
    assert not p.has_fence
    server.version = {"version": "0.33.0"}
    await server.restart()
    await eventually(lambda: p.engine_id == "other engine")
    assert watched.gone == [old]
    await eventually(lambda: "0.33.0 and 0.32.0" in p.problem)
    assert (p.compatibility_hash, p.has_fence) == ("other hash", True)


async def test_a_pair_of_which_only_one_has_batons_connector_is_told_so(watched: Watched) -> None:
    p, d = await watched.pair()
    await known(p, d)
    server = watched.servers[0]
    watched.channels.serve(server.port, "other hash", "other engine", has_fence=True)
    await server.restart()
    await eventually(lambda: "only one of them has Baton's connector" in p.problem)
    assert "load Baton's connector on both" in p.problem


async def test_a_p_whose_hand_offs_lack_a_block_is_told_so(watched: Watched) -> None:
    """The model has a sliding window. vLLM does not say so before the first prompt shows it."""
    p, d = await watched.pair()
    await known(p, d)
    p.server.num_unreadable += 1
    await eventually(lambda: "sliding window" in p.problem)
    assert "Load Baton's connector on both sides" in p.problem
    assert (p.takes_work, d.problem) == (True, "")


async def test_a_p_that_has_restarted_is_not_told_what_the_one_before_lacked(watched: Watched) -> None:
    """It may have been given Baton's connector."""
    p, d = await watched.pair()
    await known(p, d)
    p.server.num_unreadable += 1
    await eventually(lambda: "sliding window" in p.problem)
    watched.channels.serve(watched.servers[0].port, engine_id="other engine")
    await watched.servers[0].restart()
    await eventually(lambda: p.engine_id == "other engine" and p.problem == "")
    assert p.server.num_unreadable == 0


async def test_a_server_that_at_last_names_its_own_engine_can_be_read_from_and_read(watched: Watched) -> None:
    """The side channel of another one had answered for it, so the route that was made then leaves it out."""
    servers = [await watched.server() for _ in range(3)]
    watched.channels.serve(servers[2].port, engine_id=f"engine of {servers[0].port}")
    p, first, second = watched.pool.add_static([servers[0].address], [one.address for one in servers[1:]])
    await known(p, first, second)
    await eventually(lambda: watched.pool.route("tiny").readers(p) == (first,))
    watched.channels.serve(servers[2].port, engine_id="its own")
    await servers[2].restart()
    await eventually(lambda: watched.pool.route("tiny").readers(p) == (first, second))


async def test_another_engine_is_noticed_without_its_id(watched: Watched) -> None:
    p, _ = await watched.pair()
    del watched.channels.facts[watched.servers[0].port]
    await known(p)
    assert p.engine_id == ""
    watched.gone.clear()
    watched.servers[0].numbers.started_s += 1  # so fast that no question came in between
    await eventually(lambda: watched.gone == [p.worker_id])


async def test_a_blip_of_the_side_channel_changes_nothing(watched: Watched) -> None:
    """The same process still is what it was."""
    p, d = await watched.pair()
    await known(p, d)
    watched.gone.clear()
    server = watched.servers[0]
    del watched.channels.facts[server.port]
    server.health = 503
    await eventually(lambda: not p.takes_work)
    server.health = 200
    await eventually(lambda: p.takes_work)
    assert (p.compatibility_hash, watched.gone) == ("hash", [])
    assert "does not answer" in p.problem


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": {"detail": "Not Found"}}, "/version does not name a version"),
        ({"version": {"version": "\x00"}}, "/version does not name a version"),
        ({"health": 404}, "/health is answered with status 404"),
        ({"models_status": 401}, "asks for another API key"),
    ],
)
async def test_a_server_that_is_not_vllm_is_never_used(watched: Watched, change: dict[str, Any], said: str) -> None:
    server = await watched.server()
    for name, value in change.items():
        setattr(server, name, value)
    (worker,) = watched.pool.add_static([server.address], [server.address])
    await eventually(lambda: said in worker.problem)
    assert not worker.takes_work
    assert worker.models is None
    with pytest.raises(ApiError):
        watched.pool.route("tiny")


async def test_a_server_that_does_not_speak_http_is_pointed_out(watched: Watched) -> None:
    async def shout(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"+PONG\r\n")
        writer.close()

    served = await asyncio.start_server(shout, "127.0.0.1", 0)
    port = served.sockets[0].getsockname()[1]
    (worker,) = watched.pool.add_static([], [f"vllm+http://127.0.0.1:{port}"])
    await eventually(lambda: "no HTTP" in worker.problem)
    served.close()
    await served.wait_closed()


async def test_a_server_without_the_connector_is_not_paired(watched: Watched) -> None:
    p, d = await watched.pair()
    watched.servers[0].numbers.has_nixl = False
    await eventually(lambda: "NixlConnector" in p.problem)
    assert "--kv-transfer-config" in p.problem
    assert watched.channels.asked == [("127.0.0.1", watched.servers[1].port)] or not watched.channels.asked
    await known(p, d)
    with pytest.raises(ApiError, match="connector"):
        watched.pool.route("tiny")


async def test_a_server_that_does_both_needs_no_connector(watched: Watched) -> None:
    server = await watched.server()
    server.numbers.has_nixl = False
    (worker,) = watched.pool.add_static([server.address], [server.address])
    await known(worker)
    assert worker.problem == ""
    assert watched.channels.asked == []
    assert watched.pool.route("tiny").decode == (worker,)


async def test_servers_that_differ_are_named(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    p_server, d_server = await watched.server(), await watched.server()
    d_server.numbers.block_size = 32
    with caplog.at_level(logging.WARNING, logger="baton.router"):
        p, d = watched.pool.add_static([p_server.address], [d_server.address])
        await eventually(lambda: bool(p.problem and d.problem))
        await rounds(watched, 5)
    assert p.problem == (
        f"It is not paired for tiny: it and {d.worker_id} differ in block size: 16 and 32. "
        "To change that, start both with the same --block-size."
    )
    assert p.worker_id in d.problem
    assert [record.getMessage() for record in caplog.records].count(f"worker {p.worker_id}: {p.problem}") == 1
    d_server.numbers.block_size = 16
    await d_server.restart()
    await eventually(lambda: not (p.problem or d.problem))


async def test_a_side_channel_that_says_nothing_keeps_no_pair_apart(watched: Watched) -> None:
    """The pair is made all the same, as nothing is known to differ."""
    p, d = await watched.pair()
    watched.channels.errors[watched.servers[0].port] = "it is silent"
    await known(p, d)
    assert "it is silent" in p.problem
    assert watched.pool.route("tiny").readers(p) == (d,)
    assert p.weights_fingerprint == "vllm 0.32.0 /model"


async def test_a_side_channel_of_another_version_is_paired_with_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hand-offs may be of another format as well, and have no lease."""
    monkeypatch.setattr("baton_serve.router.vllm.servers.side_channel.FIRST_PAUSE_S", 0.0)
    watched.channels.reason = SideChannelReason.OTHER_VERSION
    p, d = await watched.pair()
    for server in watched.servers:
        watched.channels.errors[server.port] = "it is of another version"
    await known(p, d)
    assert "another version" in p.problem
    with pytest.raises(ApiError, match="side channel: that of one is in the format"):
        watched.pool.route("tiny")
    watched.channels.reason = SideChannelReason.NO_ANSWER
    await rounds(watched, 3)
    with pytest.raises(ApiError, match="side channel"):
        watched.pool.route("tiny")
    for worker, server in zip((p, d), watched.servers, strict=True):
        await server.restart()
        await eventually(lambda worker=worker: not worker.server.other_format)
    del watched.channels.errors[watched.servers[0].port], watched.channels.errors[watched.servers[1].port]
    await eventually(lambda: p.compatibility_hash == d.compatibility_hash == "hash")
    assert watched.pool.route("tiny").readers(p) == (d,)


async def test_a_side_channel_is_asked_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_serve.router.vllm.servers.side_channel.FIRST_PAUSE_S", 0.0)
    server = await watched.server()
    server.models["tuned"] = ("/lora", "tiny")
    watched.channels.errors[server.port] = "it is silent"
    (worker,) = watched.pool.add_static([server.address], [])
    await known(worker)
    assert worker.compatibility_hash == ""
    del watched.channels.errors[server.port]
    await eventually(lambda: worker.compatibility_hash == "hash")
    assert worker.problem == ""


async def test_one_side_channel_for_two_servers_is_said(watched: Watched) -> None:
    p, d = await watched.server(), await watched.server()
    workers = watched.pool.add_static([f"vllm+{p.url}?side_channel=7"], [f"vllm+{d.url}?side_channel=7"])
    watched.channels.serve(7)
    await eventually(lambda: all("VLLM_NIXL_SIDE_CHANNEL_PORT" in worker.problem for worker in workers))
    with pytest.raises(ApiError, match="side channel"):
        watched.pool.route("tiny")


class TestExpiries:
    async def test_expiries_that_nobody_expected_are_counted_and_told(
        self, watched: Watched, caplog: pytest.LogCaptureFixture
    ) -> None:
        watched_server = await watched.server()
        watched_server.numbers.expired = 7
        (p,) = watched.pool.add_static([watched_server.address], [])
        await known(p)
        await rounds(watched)
        assert watched.unexpected.total() == 0, "they are from before"
        watched.expected[p.engine_id] += 2
        watched.expected_late[p.engine_id] += 1
        watched_server.numbers.expired += 2
        watched_server.numbers.late += 1
        await rounds(watched)
        assert watched.unexpected.total() == 0
        with caplog.at_level(logging.WARNING, logger="baton.router"):
            watched_server.numbers.expired += 1
            await eventually(lambda: watched.unexpected == {p.worker_id: 1})
            watched_server.numbers.late += 1
            await eventually(lambda: watched.unexpected == {p.worker_id: 2})
            await rounds(watched)
        assert [p.worker_id in record.getMessage() for record in caplog.records] == [True, True]

    async def test_the_expiries_of_a_new_engine_begin_at_zero(self, watched: Watched) -> None:
        server = await watched.server()
        server.numbers.expired = 5
        (p,) = watched.pool.add_static([server.address], [])
        await known(p)
        server.numbers.expired = 1
        await server.restart()
        await eventually(lambda: p.takes_work)
        await rounds(watched)
        assert watched.unexpected.total() == 0

    async def test_expiries_are_not_compared_while_the_engine_is_unknown(self, watched: Watched) -> None:
        server = await watched.server()
        del watched.channels.facts[server.port]
        (p,) = watched.pool.add_static([server.address], [])
        await known(p)
        assert p.engine_id == ""
        server.numbers.expired += 1
        await rounds(watched)
        assert watched.unexpected.total() == 0

    async def test_the_expiries_of_all_ranks_of_a_server_count(self, watched: Watched) -> None:
        server = await watched.server()
        watched.channels.serve(server.port, engine_id="e_dp0")
        numbers = server.numbers
        numbers.running, numbers.waiting, numbers.deferred, numbers.usage = [0, 0], [0, 0], [0, 0], [0.0, 0.0]
        (p,) = watched.pool.add_static([server.address], [])
        await known(p)
        watched.expected["e_dp1"] += 1
        numbers.expired += 1
        await rounds(watched)
        assert watched.unexpected.total() == 0


async def test_a_server_that_is_removed_is_asked_no_more(watched: Watched) -> None:
    p, d = await watched.pair()
    await known(p, d)
    watched.pool.remove_static(p)
    server = watched.servers[0]
    await asyncio.sleep(0)
    asked = len(server.asked)
    await rounds(watched, 1)
    assert len(server.asked) <= asked + 1, "at most the question under way"
