"""A router process in front of servers that answer as vLLM does, with side channels over ZMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest_asyncio

from tests.kits.patience import PATIENCE_S
from tests.kits.router.process import RouterProcess
from tests.kits.router.stub_vllm import StubVllm
from tests.kits.vllm.prefill_worker import prefill_worker


class Servers:
    """A P and a D with the addresses under which a router gets them."""

    def __init__(self, p: StubVllm, d: StubVllm, ports: list[int]) -> None:
        self.p, self.d = p, d
        self.prefill = f"vllm+{p.url}?side_channel={ports[0]}"
        self.decode = f"vllm+{d.url}?side_channel={ports[1]}"


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        stubs = [StubVllm(), StubVllm()]
        for stub in stubs:
            await stub.start()
            stack.push_async_callback(stub.stop)
        channels = [await stack.enter_async_context(prefill_worker(duration_s=30)) for _ in stubs]
        yield Servers(stubs[0], stubs[1], [channel.where.port for channel in channels])


async def until(client: httpx.AsyncClient, path: str, holds: Callable[[httpx.Response], Any]) -> httpx.Response:
    async with asyncio.timeout(PATIENCE_S):
        while not holds(answer := await client.get(path)):  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.02)
    return answer


async def test_a_router_finds_two_vllm_servers_without_redis(servers: Servers) -> None:
    router = await RouterProcess().start(prefill=[servers.prefill], decode=[servers.decode], log_format="json")
    async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client:
        await until(client, "/ready", lambda answer: answer.status_code == 200)
        shown = (await client.get("/admin/workers")).json()["workers"]
        assert [(one["id"], one["kind"], one["version"], one["problem"]) for one in shown] == [
            (servers.p.worker_id, "vllm", "0.32.0", ""),
            (servers.d.worker_id, "vllm", "0.32.0", ""),
        ]
        assert [one["compatibility_hash"] for one in shown] == ["c0ffee", "c0ffee"]
        assert shown[0]["engine_id"] != shown[1]["engine_id"] != ""
        assert shown[0]["side_channel"] == f"127.0.0.1:{servers.prefill.rpartition('=')[2]}"
        assert (await client.get("/health")).json()["models"] == ["tiny"]

        servers.p.numbers.waiting = [3]
        await until(client, "/admin/workers", lambda answer: answer.json()["workers"][0]["waiting"] == 3)
        metrics = (await client.get("/metrics")).text
        assert 'baton_router_vllm_polls_total{outcome="answered"}' in metrics

        await servers.d.stop()
        gone = await until(client, "/ready", lambda answer: answer.status_code == 503)
        assert gone.json()["status"] == "no_workers"
        shown = (await client.get("/admin/workers")).json()["workers"]
        assert "No vLLM serves at" in shown[1]["problem"]
        await servers.d.start()
        await until(client, "/ready", lambda answer: answer.status_code == 200)
    code, log = await router.stop()
    assert code == 0
    assert "Traceback" not in log


async def test_servers_are_added_and_deleted_while_a_router_serves(servers: Servers) -> None:
    router = await RouterProcess().start(prefill=[servers.prefill], decode=[servers.prefill])
    async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client:
        await until(client, "/ready", lambda answer: answer.status_code == 200)
        answer = await client.post("/admin/workers", json={"url": servers.decode, "role": "both"})
        assert (answer.status_code, answer.json()["id"]) == (201, servers.d.worker_id)
        again = await client.post("/admin/workers", json={"url": servers.d.url, "role": "both"})
        assert again.status_code == 409, "the same server under its plain URL"
        await until(client, "/health", lambda answer: answer.json()["reachable_workers"] == 2)
        assert (await client.delete(f"/admin/workers/{servers.d.worker_id}")).status_code == 200
        assert (await client.get("/health")).json()["workers"] == 1
    assert (await router.stop())[0] == 0
