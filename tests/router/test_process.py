"""The router as a process: real Redis, real signals, status lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import redis

from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.leases.store import LeaseState
from baton_serve.core.protocol.status import Failed, Ready
from baton_serve.workers.leases.keeper import LeaseKeeper
from tests.kits.patience import PATIENCE_S
from tests.kits.router.cluster import chat, eventually, spoken
from tests.kits.router.process import Announced, RouterProcess, until_workers
from tests.kits.router.stub_workers import Hang, word


async def test_a_router_discovers_workers_renews_leases_and_stops_in_order(
    redis_url: str, announced: Announced
) -> None:
    router = await RouterProcess().start(redis_url=redis_url, lease_duration_ms=600, lease_renew_interval_ms=100)
    await until_workers(router.url, 2)
    hang = announced.d.hangs()
    async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client:
        request = asyncio.create_task(client.post("/v1/chat/completions", json=chat(stream=True)))
        await eventually(lambda: len(announced.d.bodies) == 1)
        assert announced.held() == ["leasep1"]
        leases = (await client.get("/admin/leases")).json()["leases"]
        assert [(lease["lease_id"], lease["engine_id"]) for lease in leases] == [("leasep1", "enginep")]
        hang.release.set()
        assert spoken((await request).text) == "".join(map(word, range(4)))
        assert announced.held() == []
        # A client that leaves: the lease is gone at once, although its 6 s (as P granted it) are not.
        announced.d.script.append(Hang())
        leaving = asyncio.create_task(client.post("/v1/chat/completions", json=chat(stream=True)))
        await eventually(lambda: len(announced.d.bodies) == 2)
        leaving.cancel()
        await eventually(lambda: announced.held() == [])
        await eventually(lambda: announced.d.num_disconnects == 1)
        # SIGTERM while D reads: aborted, released, exit code 0.
        announced.d.script.append(Hang())
        last = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
        await eventually(lambda: len(announced.d.bodies) == 3)
        code, _ = await router.stop()
        response = await last
        assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
    assert code == 0
    assert announced.held() == []


@pytest.mark.slow
async def test_a_held_request_whose_lease_ended_is_prefilled_again(redis_url: str, announced: Announced) -> None:
    router = await RouterProcess().start(redis_url=redis_url, lease_duration_ms=600, lease_renew_interval_ms=100)
    await until_workers(router.url, 2)
    await announced.d.stop()
    async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client:
        request = asyncio.create_task(client.post("/v1/chat/completions", json=chat(stream=True)))
        await eventually(lambda: announced.p.num_leases == 1)
        announced.store.release("enginep", ["leasep1"])
        announced.store.reap("enginep", ["leasep1"], [])
        await eventually(lambda: announced.p.num_leases == 2)
        await announced.d.start(announced.d.port)
        assert spoken((await request).text) == "".join(map(word, range(4)))
    assert (await router.stop())[0] == 0


async def lease_events(client: httpx.AsyncClient) -> dict[str, float]:
    """What became of the router's leases, as it counts it."""
    text = (await client.get("/metrics")).text
    rows = re.findall(r'^baton_router_leases_total{event="(\w+)"} (\S+)$', text, re.MULTILINE)
    return {event: float(count) for event, count in rows}


async def until_more(client: httpx.AsyncClient, event: str) -> None:
    """Until the router has counted that event once more."""
    before = (await lease_events(client))[event]
    async with asyncio.timeout(PATIENCE_S):
        while (await lease_events(client))[event] <= before:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_an_emptied_redis_loses_held_requests_nothing(redis_url: str, announced: Announced) -> None:
    """P, which knows its leases by itself, grants again what Redis has forgotten; the same blocks are read."""
    router = await RouterProcess().start(redis_url=redis_url, lease_duration_ms=20_000, lease_renew_interval_ms=100)
    await until_workers(router.url, 2)
    await announced.d.stop()
    async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client:
        request = asyncio.create_task(client.post("/v1/chat/completions", json=chat(stream=True)))
        await eventually(lambda: announced.p.num_leases == 1)
        await until_more(client, "answered_held")
        with redis.Redis.from_url(redis_url) as server:
            server.flushall()
        await until_more(client, "answered_unknown")
        async with kept(redis_url, announced.p.engine_id, "leasep1"):
            await announced.announce()
            await until_more(client, "answered_held")
            assert announced.held() == ["leasep1"]
            await announced.d.start(announced.d.port)
            assert spoken((await request).text) == "".join(map(word, range(4)))
        assert (await lease_events(client))["lost"] == 0
    assert len(announced.p.bodies) == 1, "nothing was prefilled twice"
    assert (await router.stop())[0] == 0


@contextlib.asynccontextmanager
async def kept(redis_url: str, engine_id: str, lease_id: str) -> AsyncIterator[None]:
    """P's side: the lease is granted (again) and looked after until D has read."""
    over: asyncio.Future[LeaseState] = asyncio.get_running_loop().create_future()
    keeper = LeaseKeeper(
        RedisLeaseStore(redis_url),
        engine_id,
        on_end=lambda _, how: over.set_result(how),
        on_failed=over.set_exception,
        duration_ms=20_000,
    )
    keeper.start()
    try:
        keeper.grant(lease_id)
        yield
        assert await asyncio.wait_for(over, PATIENCE_S) is LeaseState.DONE
    finally:
        await keeper.stop()


async def first_answer(url: str, path: str) -> Any:
    """To a request that was sent as soon as somebody listened."""
    async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        while True:
            try:
                return (await client.get(path)).json()
            except httpx.ConnectError:
                await asyncio.sleep(0.005)


async def test_the_first_requests_find_who_is_there(redis_url: str, announced: Announced, free_port: int) -> None:
    """They were in the backlog of the port while the router started, and are answered before anything else."""
    first = await RouterProcess().start(redis_url=redis_url)
    starting = asyncio.create_task(RouterProcess().start(redis_url=redis_url, port=free_port))
    paths = ["/admin/workers", "/admin/routers"]
    workers, routers = await asyncio.gather(*(first_answer(f"http://127.0.0.1:{free_port}", path) for path in paths))
    assert [worker["id"] for worker in workers["workers"]] == ["d", "p"]
    assert len(routers["routers"]) == 2
    for router in (await starting, first):
        assert (await router.stop())[0] == 0


@pytest.mark.slow
async def test_a_router_starts_without_the_redis_that_it_was_given() -> None:
    router = await RouterProcess().start(redis_url="redis://127.0.0.1:1/0")
    assert isinstance(router.statuses[-1], Ready)
    assert (await router.stop())[0] == 0


async def test_a_port_in_use_is_one_line(redis_url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        router = await RouterProcess().start(redis_url=redis_url, port=taken.getsockname()[1])
        code, stderr = await router.stop()
    assert code == 1
    assert len(stderr.strip().splitlines()) == 1
    assert "cannot listen on 127.0.0.1 port" in stderr
    assert isinstance(router.statuses[-1], Failed)


async def test_a_router_serves_named_workers_without_redis(announced: Announced) -> None:
    router = await RouterProcess().start(redis_url="", prefill=[announced.p.url], decode=[announced.d.url])
    async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client:
        response = await client.post("/v1/completions", json={"model": "m", "prompt": "x", "max_tokens": 3})
    assert response.json()["choices"][0]["text"] == "".join(map(word, range(3)))
    assert (await router.stop())[0] == 0


@pytest.mark.slow
async def test_a_router_without_a_decode_worker_says_where_one_has_to_come_from(
    redis_url: str, announced: Announced
) -> None:
    router = await RouterProcess().start(redis_url=redis_url, prefill=[announced.p.url])
    _, stderr = await router.stop()
    assert "no decode worker: decode workers have to come from the registry" in stderr


@pytest.mark.parametrize("shape", ["json", pytest.param("text", marks=pytest.mark.slow)])
async def test_log_lines_have_the_shape_that_is_set(announced: Announced, shape: str) -> None:
    router = await RouterProcess().start(
        redis_url="", prefill=[announced.p.url], decode=[announced.d.url], log_requests=True, log_format=shape
    )
    async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client:
        response = await client.post("/v1/completions", json={"model": "m", "prompt": "x"})
        assert response.status_code == 200
    _, stderr = await router.stop()
    (line,) = [line for line in stderr.splitlines() if " done after " in line]
    assert (json.loads(line)["level"] == "info") if shape == "json" else " I baton.router: " in line


@pytest.mark.parametrize(
    "option",
    ["socket_timeout=sesame", *(pytest.param(one, marks=pytest.mark.slow) for one in ("sesame=1", "protocol=9"))],
)
async def test_an_unknown_redis_option_is_one_line(option: str) -> None:
    router = await RouterProcess().start(redis_url=f"redis://:sesame@127.0.0.1:1/0?{option}")
    code, stderr = await router.stop()
    assert (code, stderr) == (1, "router: redis_url is not understood by the Redis client\n")
    assert isinstance(router.statuses[-1], Failed)
