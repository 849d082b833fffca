"""Several router processes on one Redis: they meet, and notice each other's end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.core.registry.announcement import ROUTERS
from baton_serve.core.registry.redis_registry import RedisRegistry
from baton_serve.router.peers.links import LinkedPeers
from tests.kits.patience import PATIENCE_S
from tests.kits.registry import snapshot
from tests.kits.router.process import RouterProcess


class Observer:
    """Sees what a router sees of the others, without being one of them."""

    def __init__(self, redis_url: str) -> None:
        self.registry = RedisRegistry(redis_url, ROUTERS)
        self._upstream = HttpClient(2.0)
        own = RouterRecord(router_id="0" * 12, url="", internal_url="")
        self.peers = LinkedPeers(own, self._upstream, ())
        self.dead: list[str] = []
        self.peers.on_dead.append(self.dead.append)

    async def close(self) -> None:
        await self.peers.close()
        await self._upstream.close()
        await self.registry.close()

    async def until(self, condition: Callable[[list[RouterRecord]], Any]) -> None:
        """Until the registry's list is so."""
        async with asyncio.timeout(PATIENCE_S):
            async for records in self.registry.watch():
                self.peers.apply(records)
                if condition(records):
                    return

    async def settled(self, condition: Callable[[], bool]) -> None:
        """Until the links are so; the registry plays no part."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.005)

    def states(self) -> list[str]:
        return [peer.state for peer in self.peers.peers()]


@pytest_asyncio.fixture
async def observer(redis_url: str) -> AsyncIterator[Observer]:
    made = Observer(redis_url)
    yield made
    await made.close()


async def test_a_killed_router_is_dead_at_once_and_one_that_leaves_withdraws(
    redis_url: str, observer: Observer
) -> None:
    killed, leaving = [await RouterProcess().start(redis_url=redis_url) for _ in range(2)]
    await observer.until(lambda records: len(records) == 2)
    ids = {record.url: record.router_id for record in observer.peers}
    assert ids.keys() == {killed.url, leaving.url}
    await observer.settled(lambda: observer.states() == ["linked", "linked"])
    os.kill(killed.process.pid, signal.SIGKILL)
    await observer.settled(lambda: bool(observer.dead))
    assert observer.dead == [ids[killed.url]]
    code, stderr = await leaving.stop()
    assert (code, "Traceback" in stderr) == (0, False)
    assert ids[leaving.url] not in {record.router_id for record in await snapshot(observer.registry)}
    await observer.settled(lambda: observer.dead == [ids[killed.url], ids[leaving.url]])


async def test_a_router_that_answers_lives_although_redis_forgot_everything(redis_url: str, observer: Observer) -> None:
    router = await RouterProcess().start(redis_url=redis_url)
    await observer.until(lambda records: len(records) == 1)
    await observer.settled(lambda: observer.states() == ["linked"])
    observer.peers.apply([])
    await observer.settled(lambda: observer.states() == ["linked"])
    assert observer.dead == []
    assert (await router.stop())[0] == 0


@pytest.mark.slow
async def test_a_stopped_router_is_dead_when_neither_it_nor_redis_speaks_for_it(
    redis_url: str, observer: Observer
) -> None:
    router = await RouterProcess().start(redis_url=redis_url)
    await observer.until(lambda records: len(records) == 1)
    await observer.settled(lambda: observer.states() == ["linked"])
    os.kill(router.process.pid, signal.SIGSTOP)
    await observer.until(lambda records: not records)
    await observer.settled(lambda: len(observer.dead) == 1)
    os.kill(router.process.pid, signal.SIGCONT)
    await observer.until(lambda records: len(records) == 1)
    await observer.settled(lambda: observer.states() == ["linked"])
    assert (await router.stop())[0] == 0
