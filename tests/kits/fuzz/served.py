"""A router with one P and one D that serve what they are sent."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import httpx

from baton_serve.router.peers.listener import PeerFront
from tests.kits.fuzz.profile import BUSY, check_error, tried
from tests.kits.patience import PATIENCE_S
from tests.kits.port import Caller, all_said
from tests.kits.router.cluster import Cluster, eventually, make_settings
from tests.kits.router.stub_workers import StubWorker
from tests.kits.router.vllm_server import add_vllm


class Served:
    """``vllm``: the two are vLLM servers."""

    def __init__(self, *, vllm: bool = False) -> None:
        self._vllm = vllm

    async def __aenter__(self) -> Self:
        self.cluster = cluster = Cluster(make_settings(max_body_bytes=2 << 20, body_timeout_s=5))
        await cluster.start()
        self.workers: list[StubWorker] = [
            (await add_vllm(cluster, role))[0] if self._vllm else await cluster.add(role)
            for role in ("prefill", "decode")
        ]
        port = PeerFront(cluster.settings, cluster.peers.record, cluster.internal(), cluster.body_budget)
        self.internal = httpx.AsyncClient(transport=httpx.ASGITransport(port), base_url="http://localhost")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.internal.aclose()
        await self.cluster.close()

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Any = None, *, internal: bool = False
    ) -> httpx.Response:
        client = self.internal if internal else self.cluster.client
        headers = [("content-type", "application/json"), *(headers or ())]
        return await client.request(method, path, content=body, headers=headers)

    async def say(self, pieces: list[bytes], *, leaves: bool = True) -> bytes:
        """``all_said`` on a connection of its own."""
        caller = Caller(*await self.cluster.connect())
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await all_said(caller, pieces, leaves=leaves)
        finally:
            caller.writer.close()

    async def tried(self, area: str, answer: httpx.Response) -> None:
        tried[area] += 1
        check_error(answer, *BUSY)
        assert b"internal_error" not in answer.content
        await eventually(self.cluster.is_idle)
