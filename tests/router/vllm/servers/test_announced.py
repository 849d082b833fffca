"""vLLM servers that announce themselves: each is a worker as long as it does, and only one."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import msgspec
import pytest

from baton_serve.core.protocol.vllm_server import VllmStatus
from baton_serve.core.protocol.worker import Role, WorkerLoad
from baton_serve.router.pool import Worker
from baton_serve.router.pool.lost import LostWorkers
from baton_serve.router.vllm.kind import VLLM
from baton_serve.router.vllm.servers.announced import AnnouncedServers
from tests.kits.registry import vllm_server
from tests.kits.router.cluster import eventually
from tests.kits.router.stub_vllm import StubVllm
from tests.router.vllm.servers.conftest import Watched, known


@pytest.fixture
def announced(watched: Watched) -> AnnouncedServers:
    return AnnouncedServers(watched.pool)


@pytest.fixture
def lost(watched: Watched) -> LostWorkers:
    lost = LostWorkers(Counter())
    watched.pool.on_left.append(lost.left)
    return lost


def status(server: StubVllm, server_id: str = "s", load: WorkerLoad | None = None, **fields: Any) -> VllmStatus:
    made = vllm_server(server_id, url=server.url, side_channel_port=server.port, **fields)
    return made if load is None else msgspec.structs.replace(made, load=load)


def only(watched: Watched) -> Worker:
    (worker,) = watched.pool
    return worker


async def test_a_pair_that_announces_itself_is_watched_and_paired(
    watched: Watched, announced: AnnouncedServers
) -> None:
    p, d = await watched.server(), await watched.server()
    announced.apply([status(p, "p", tp=2, handshake_port=p.port), status(d, "d", role=Role.DECODE)])
    one, other = watched.pool
    assert (one.worker_id, one.kind, one.version, one.role) == (p.worker_id, VLLM, "0.32.0", Role.PREFILL)
    assert (one.server.side_channel, one.server.handshake_port, one.tp, one.given) == (
        ("127.0.0.1", p.port),
        p.port,
        2,
        None,
    )
    assert not one.takes_work, "nothing of it was seen yet"
    await known(one, other)
    assert watched.pool.route("tiny").readers(one) == (other,)
    assert (one.usage.limit, other.usage.limit, one.problem, other.problem) == (8, 4, "", "")
    assert (one.compatibility_hash, one.usage.num_blocks) == ("hash", 100), "what it answers counts"


async def test_a_server_is_a_worker_until_it_is_announced_no_more(
    watched: Watched, announced: AnnouncedServers
) -> None:
    server = await watched.server()
    announced.apply([status(server)])
    worker = only(watched)
    await known(worker)
    announced.apply([status(server, load=WorkerLoad(running=1))])
    assert only(watched) is worker
    announced.apply([])
    assert not [*watched.pool]
    asked = len(server.asked)
    await asyncio.sleep(0)
    announced.apply([status(server)])
    assert only(watched) is not worker
    await eventually(lambda: len(server.asked) > asked)


@pytest.mark.parametrize("withdrawn", ["a", "another", ""])
async def test_a_server_that_withdraws_is_not_lost(
    watched: Watched, announced: AnnouncedServers, lost: LostWorkers, withdrawn: str
) -> None:
    server = await watched.server()
    announced.apply([status(server, "a")])
    if withdrawn:
        announced.withdrew(status(server, withdrawn))
    announced.apply([])
    assert [one.url for one in lost.all()] == ([] if withdrawn == "a" else [server.url])


@pytest.mark.parametrize("withdrawn", ["a", "b"])
async def test_a_server_that_withdraws_does_not_withdraw_the_next_one_at_its_url(
    watched: Watched, announced: AnnouncedServers, lost: LostWorkers, withdrawn: str
) -> None:
    server = await watched.server()
    announced.apply([status(server, "a", started_s=1.0)])
    worker = only(watched)
    announced.withdrew(status(server, "a"))
    announced.apply([status(server, "b", started_s=2.0)])
    assert only(watched) is worker, "it is at the same place and does the same"
    announced.withdrew(status(server, withdrawn))
    announced.apply([status(server, "b", started_s=2.0)])
    announced.apply([])
    assert [one.url for one in lost.all()] == ([] if withdrawn == "b" else [server.url])


async def test_the_announcement_of_the_newest_process_under_a_url_counts(
    watched: Watched, announced: AnnouncedServers
) -> None:
    """The entry of one that was killed is there until its ttl is over."""
    server = await watched.server()
    dead = status(server, "a", started_s=1.0)
    announced.apply([dead])
    worker = only(watched)
    announced.apply([dead, status(server, "b", started_s=2.0)])
    assert only(watched) is worker, "it is at the same place and does the same"
    announced.apply([dead, status(server, "0", started_s=3.0, role=Role.DECODE)])
    assert only(watched) is not worker
    assert only(watched).role is Role.DECODE
    announced.apply([status(server, "0", started_s=3.0, role=Role.DECODE)])
    assert only(watched).role is Role.DECODE


@pytest.mark.parametrize("scheme", ["vllm+http", "http"])
async def test_a_server_that_was_given_by_its_address_is_one_worker(
    watched: Watched, announced: AnnouncedServers, scheme: str
) -> None:
    server = await watched.server()
    address = server.address if scheme == "vllm+http" else server.url
    (given,) = watched.pool.add_static([], [address])
    announced.apply([status(server, max_num_seqs=9)])
    assert only(watched) is given
    assert given.role is Role.DECODE
    announced.apply([])
    assert only(watched) is given
    announced.apply([status(server, max_num_seqs=9)])
    watched.pool.remove_static(given)
    await eventually(lambda: len(watched.pool) == 1)
    assert (only(watched).given, only(watched).usage.limit) == (None, 18)


async def test_leases_come_from_the_announcement_and_the_rest_from_the_server(
    watched: Watched, announced: AnnouncedServers
) -> None:
    server = await watched.server()
    server.numbers.running = [3]
    announced.apply([status(server, load=WorkerLoad(running=1, free_blocks=5, leases=2))])
    worker = only(watched)
    await known(worker)
    before = watched.outcomes["answered"]
    await eventually(lambda: watched.outcomes["answered"] > before)
    assert (worker.usage.load.running, worker.usage.load.free_blocks, worker.usage.load.leases) == (3, 100, 2)
    announced.apply([status(server, load=WorkerLoad(leases=1))])
    assert (worker.usage.load.running, worker.usage.load.free_blocks) == (3, 100), "it has just answered"
    await eventually(lambda: (worker.usage.load.running, worker.usage.load.leases) == (3, 1))


async def test_the_load_is_taken_from_where_a_server_does_not_answer(
    watched: Watched, announced: AnnouncedServers
) -> None:
    server = await watched.server()
    announced.apply([status(server)])
    worker = only(watched)
    await known(worker)
    await server.stop()
    await eventually(lambda: not worker.standing.healthy)
    worker.forget_report()
    busy = status(server, load=WorkerLoad(running=3, free_blocks=7, pinned_blocks=3))
    announced.apply([busy])
    assert (worker.usage.load.running, worker.usage.spare_blocks, worker.usage.load_is_old) == (3, 7, False)
    worker.forget_report()
    announced.apply([busy])
    assert worker.usage.load_is_old, "the list repeats what was heard"


async def test_where_tls_is_set_up_a_server_without_is_left_out(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    announced = AnnouncedServers(watched.pool, only_tls=True)
    server = await watched.server()
    with caplog.at_level(logging.WARNING):
        for running in range(3):
            announced.apply([status(server, load=WorkerLoad(running=running))])
    assert not [*watched.pool]
    assert [record.getMessage() for record in caplog.records] == [
        f"vLLM server {server.url} announces http://, but TLS is set up here: it is left out"
    ]
    announced.apply([vllm_server("s", url=server.url.replace("http://", "https://"))])
    assert only(watched).url.startswith("https://")


async def test_one_engine_under_two_addresses_is_pointed_out(watched: Watched, announced: AnnouncedServers) -> None:
    """As where a router is given a name of the machine, and the server announces an address of it."""
    by_name, by_address = await watched.server(), await watched.server()
    for server in (by_name, by_address):
        watched.channels.serve(server.port, engine_id="one")
    (given,) = watched.pool.add_static([by_name.address], [])
    announced.apply([status(by_address)])
    by_itself = next(worker for worker in watched.pool if worker is not given)
    for one, other in ((given, by_itself), (by_itself, given)):
        await eventually(lambda one=one: "one engine under two addresses" in one.problem)
        assert other.worker_id in one.problem
