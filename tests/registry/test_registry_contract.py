"""What every registry promises: the same tests for the one in memory and the one in Redis."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import pytest

from protocol.worker import Role, WorkerLoad, WorkerRecord, WorkerStatus
from registry.memory_registry import MemoryRegistry
from registry.redis_registry import RedisRegistry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from registry.store import Registry

LONG_MS = 60_000


def worker(worker_id: str, running: int = 0) -> WorkerStatus:
    return WorkerStatus(
        record=WorkerRecord(
            worker_id=worker_id,
            engine_id=f"engine-{worker_id}",
            role=Role.PREFILL,
            model="demo",
            url="http://127.0.0.1:1",
            internal_url="http://127.0.0.1:2",
            compatibility_hash="c",
            max_model_len=100,
            block_size=16,
            num_blocks=10,
            max_num_seqs=4,
        ),
        load=WorkerLoad(running=running),
    )


@pytest.fixture(params=["memory", "redis"])
async def registry(request: pytest.FixtureRequest) -> AsyncIterator[Registry]:
    made: Registry = (
        MemoryRegistry() if request.param == "memory" else RedisRegistry(request.getfixturevalue("redis_url"))
    )
    yield made
    await made.close()


class Watch:
    """A watcher that a test steps through."""

    def __init__(self, registry: Registry) -> None:
        self._changes = cast("AsyncGenerator[list[WorkerStatus], None]", registry.watch())

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._changes.aclose()

    async def next(self) -> list[WorkerStatus]:
        return await asyncio.wait_for(anext(self._changes), 20)

    async def until(self, expected: list[WorkerStatus]) -> None:
        while await self.next() != expected:
            pass


async def test_an_empty_registry(registry: Registry) -> None:
    assert await registry.snapshot() == []
    async with Watch(registry) as watch:
        assert await watch.next() == []


async def test_announced_workers_are_listed_in_order_with_their_last_load(registry: Registry) -> None:
    await registry.announce(worker("b"), LONG_MS)
    await registry.announce(worker("a"), LONG_MS)
    await registry.announce(worker("b", running=3), LONG_MS)
    assert await registry.snapshot() == [worker("a"), worker("b", running=3)]


async def test_a_watcher_sees_everything_at_once_and_then_every_change(registry: Registry) -> None:
    await registry.announce(worker("a"), LONG_MS)
    async with Watch(registry) as watch:
        assert await watch.next() == [worker("a")]
        await registry.announce(worker("b"), LONG_MS)
        await watch.until([worker("a"), worker("b")])
        await registry.announce(worker("a", running=1), LONG_MS)
        await watch.until([worker("a", running=1), worker("b")])
        await registry.withdraw("b")
        await watch.until([worker("a", running=1)])


async def test_announcing_the_same_again_is_no_change(registry: Registry) -> None:
    async with Watch(registry) as watch:
        await watch.next()
        await registry.announce(worker("a"), LONG_MS)
        assert await watch.next() == [worker("a")]
        for _ in range(3):
            await registry.announce(worker("a"), LONG_MS)
        await registry.announce(worker("b"), LONG_MS)
        assert await watch.next() == [worker("a"), worker("b")]


async def test_a_worker_that_fell_silent_is_forgotten(registry: Registry) -> None:
    async with Watch(registry) as watch:
        assert await watch.next() == []
        await registry.announce(worker("a"), 300)
        assert await watch.next() == [worker("a")]
        assert await watch.next() == []
    assert await registry.snapshot() == []


async def test_a_worker_that_goes_on_announcing_stays(registry: Registry) -> None:
    async with Watch(registry) as watch:
        await watch.next()
        await registry.announce(worker("a"), 300)
        assert await watch.next() == [worker("a")]
        await registry.announce(worker("a"), LONG_MS)
        await registry.announce(worker("short"), 400)
        assert await watch.next() == [worker("a"), worker("short")]
        assert await watch.next() == [worker("a")]


async def test_withdrawing_an_unknown_worker_changes_nothing(registry: Registry) -> None:
    await registry.withdraw("never")
    assert await registry.snapshot() == []


async def test_two_watchers_see_the_same(registry: Registry) -> None:
    async with Watch(registry) as one, Watch(registry) as two:
        await one.next()
        await two.next()
        await registry.announce(worker("a"), LONG_MS)
        assert await one.next() == await two.next() == [worker("a")]


async def test_a_cancelled_watcher_harms_nobody(registry: Registry) -> None:
    async def watch_for_ever() -> None:
        async with aclosing(cast("AsyncGenerator[list[WorkerStatus], None]", registry.watch())) as changes:
            async for _ in changes:
                started.set()

    started = asyncio.Event()
    task = asyncio.create_task(watch_for_ever())
    await asyncio.wait_for(started.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await registry.announce(worker("a"), LONG_MS)
    assert await registry.snapshot() == [worker("a")]


@pytest.mark.parametrize("bad", ["", "a:b", "*", "a b", "a\n", "-"])
async def test_ids_that_cannot_be_part_of_a_key_are_refused(registry: Registry, bad: str) -> None:
    with pytest.raises(ValueError, match="not a worker id"):
        await registry.announce(worker(bad), LONG_MS)
    with pytest.raises(ValueError, match="not a worker id"):
        await registry.withdraw(bad)
