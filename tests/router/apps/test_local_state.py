"""``GET /internal/state`` of a router: what it has under way, and nothing when it has nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.stub_workers import Hang


async def state(cluster: Cluster) -> dict[str, Any]:
    """All of it but the number of tasks, where it is something."""
    transport = httpx.ASGITransport(cluster.internal())
    async with httpx.AsyncClient(transport=transport, base_url="http://internal") as http:
        body: dict[str, Any] = (await http.get("/internal/state")).json()
    assert body.pop("tasks") > 0
    return {name: value for name, value in body.items() if value}


async def test_the_state_tells_where_a_request_is_until_it_is_over(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    assert await state(cluster) == {}
    prefills, decodes = Hang(), Hang()
    p.script.append(prefills)
    d.script.append(decodes)
    running = asyncio.create_task(cluster.post(chat()))
    await eventually(lambda: len(p.bodies) == 1)
    assert (await state(cluster)).items() >= {"requests": 1, "in_flight": {"p0": 1}}.items()
    prefills.release.set()
    await eventually(lambda: len(d.bodies) == 1)
    assert (await state(cluster)).items() >= {"requests": 1, "in_flight": {"d1": 1}, "renewed": 1}.items()
    decodes.release.set()
    assert (await running).status_code == 200
    await eventually(lambda: not cluster.active)
    assert await state(cluster) == {}


async def test_the_state_tells_how_many_requests_wait_for_a_worker(cluster: Cluster) -> None:
    p = await cluster.add("prefill")
    p.script.append(Hang())
    (worker,) = cluster.pool
    worker.usage.limit = 1
    await cluster.add("decode")
    running = [asyncio.create_task(cluster.post(chat())) for _ in range(3)]
    await eventually(lambda: len(cluster.queues.prefill) == 2)
    assert (await state(cluster)).items() >= {"requests": 3, "waiting": 2, "in_flight": {"p0": 1}}.items()
    for one in running:
        one.cancel()
    await eventually(lambda: not cluster.active)
    assert await state(cluster) == {}
