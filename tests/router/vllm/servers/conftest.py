"""A pool whose vLLM servers are watched, without a router around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest_asyncio

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.vllm.kind import VLLM
from baton_serve.router.vllm.servers.watchers import VllmWorkers
from tests.kits.router.cluster import eventually
from tests.kits.router.stub_vllm import ScriptedSideChannels, StubVllm


class Watched:
    """Servers, their side channels, and the pool that learns of them."""

    def __init__(self) -> None:
        self.pool = WorkerPool(4, vllm=VLLM)
        self.upstream = HttpClient(3.0)
        self.channels = ScriptedSideChannels()
        self.channels.use_expected = self._use_expected
        self.expected: Counter[str] = Counter()
        self.expected_late: Counter[str] = Counter()
        self.unexpected: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        #: What host names stand for, or why they stand for nothing.
        self.names: dict[str, list[str] | OSError] = {}
        self.gone: list[str] = []
        self.pool.on_gone.append(self.gone.append)
        self.servers: list[StubVllm] = []
        self.vllm = VllmWorkers(
            self.pool,
            self.upstream,
            self.channels,
            poll_interval_s=0.002,
            dns_interval_s=0.002,
            unexpected_expiries=self.unexpected,
            outcomes=self.outcomes,
            lookup=self._look_up,
        )

    def _use_expected(self, engine_id: str, num_seen: int, *, late: bool = False) -> int:
        expected = self.expected_late if late else self.expected
        num_used = min(expected[engine_id], num_seen)
        expected[engine_id] -= num_used
        return num_used

    async def _look_up(self, host: str) -> list[str]:
        found = self.names[host]
        if isinstance(found, OSError):
            raise found
        return found

    async def server(self) -> StubVllm:
        """A server that serves, and whose side channel does, but which nobody has added."""
        server = StubVllm()
        await server.start()
        self.channels.serve(server.port)
        self.servers.append(server)
        return server

    async def pair(self) -> tuple[Worker, Worker]:
        """A P and a D that were added; ``servers`` has them in this order."""
        p, d = await self.server(), await self.server()
        found = self.pool.add_static([p.address], [d.address])
        return found[0], found[1]

    async def close(self) -> None:
        await self.vllm.close()
        await self.upstream.close()
        for server in self.servers:
            await server.stop()


async def known(*workers: Worker) -> None:
    await eventually(lambda: all(worker.models is not None and worker.usage.heard_s for worker in workers), "known")


@pytest_asyncio.fixture
async def watched() -> AsyncIterator[Watched]:
    made = Watched()
    yield made
    await made.close()
