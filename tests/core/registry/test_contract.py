"""What every registry promises: the same tests for memory and Redis, for workers, vLLM servers and routers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import pytest

from baton_serve.core.registry.announcement import ROUTERS, VLLM_SERVERS, WORKERS, Kind
from baton_serve.core.registry.memory_registry import MemoryRegistry
from baton_serve.core.registry.redis_registry import RedisRegistry
from baton_serve.core.registry.store import Registry
from tests.kits.patience import PATIENCE_S
from tests.kits.registry import LONG_MS, Watch, router, snapshot, vllm_server, worker


@dataclass
class Made:
    """A registry, and how to make entries for it: the second argument makes two of one id differ."""

    registry: Registry[Any]
    entry: Callable[..., Any]
    kind: Kind[Any]


KINDS: dict[str, tuple[Kind[Any], Callable[..., Any]]] = {
    WORKERS.name: (WORKERS, worker),
    VLLM_SERVERS.name: (VLLM_SERVERS, vllm_server),
    ROUTERS.name: (ROUTERS, router),
}


@pytest.fixture(params=[*KINDS])
def kind(request: pytest.FixtureRequest) -> Kind[Any]:
    return KINDS[request.param][0]


@pytest.fixture(params=["memory", "redis"])
async def made(request: pytest.FixtureRequest, kind: Kind[Any]) -> AsyncIterator[Made]:
    registry: Registry[Any] = (
        MemoryRegistry(kind) if request.param == "memory" else RedisRegistry(request.getfixturevalue("redis_url"), kind)
    )
    yield Made(registry, KINDS[kind.name][1], kind)
    await registry.close()


async def test_an_announcement_that_is_repeated_unchanged_is_told_again(made: Made) -> None:
    await made.registry.announce(made.entry("a"), LONG_MS)
    async with Watch(made.registry) as watch:
        first = await watch.next()
        again = asyncio.create_task(watch.next())
        while not again.done():
            await made.registry.announce(made.entry("a"), LONG_MS)
            await asyncio.sleep(0.05)
        assert again.result() == first
        assert again.result()[0] is not first[0], "so a router sees that it is a new report"


async def test_the_last_words_of_an_entry_that_withdraws_are_told(made: Made) -> None:
    """Both of its last announcements may come within one list."""
    left: list[Any] = []
    made.registry.on_withdrawn.append(left.append)
    await made.registry.announce(made.entry("a"), LONG_MS)
    async with Watch(made.registry) as watch:
        await watch.until([made.entry("a")])
        await made.registry.announce(made.entry("a", 1), LONG_MS)
        await made.registry.withdraw("a")
        await watch.until([])
        assert left == [made.entry("a", 1)]


async def test_an_empty_registry_lists_nothing(made: Made) -> None:
    assert await snapshot(made.registry) == []
    async with Watch(made.registry) as watch:
        assert await watch.next() == []


async def test_announced_entries_are_listed_in_order_with_what_they_said_last(made: Made) -> None:
    await made.registry.announce(made.entry("b"), LONG_MS)
    await made.registry.announce(made.entry("a"), LONG_MS)
    await made.registry.announce(made.entry("b", 3), LONG_MS)
    assert await snapshot(made.registry) == [made.entry("a"), made.entry("b", 3)]


async def test_a_watcher_sees_everything_at_once_and_then_every_change(made: Made) -> None:
    await made.registry.announce(made.entry("a"), LONG_MS)
    async with Watch(made.registry) as watch:
        assert await watch.next() == [made.entry("a")]
        await made.registry.announce(made.entry("b"), LONG_MS)
        await watch.until([made.entry("a"), made.entry("b")])
        await made.registry.announce(made.entry("a", 1), LONG_MS)
        await watch.until([made.entry("a", 1), made.entry("b")])
        await made.registry.withdraw("b")
        await watch.until([made.entry("a", 1)])


async def test_announcing_the_same_again_is_no_change(made: Made) -> None:
    async with Watch(made.registry) as watch:
        await watch.next()
        await made.registry.announce(made.entry("a"), LONG_MS)
        assert await watch.next() == [made.entry("a")]
        for _ in range(3):
            await made.registry.announce(made.entry("a"), LONG_MS)
        await made.registry.announce(made.entry("b"), LONG_MS)
        assert await watch.next() == [made.entry("a"), made.entry("b")]


async def test_an_entry_that_fell_silent_is_forgotten(made: Made) -> None:
    async with Watch(made.registry) as watch:
        assert await watch.next() == []
        await made.registry.announce(made.entry("a"), 300)
        assert await watch.next() == [made.entry("a")]
        assert await watch.next() == []
    assert await snapshot(made.registry) == []


async def test_an_entry_that_goes_on_announcing_stays(made: Made) -> None:
    async with Watch(made.registry) as watch:
        await watch.next()
        await made.registry.announce(made.entry("a"), 300)
        assert await watch.next() == [made.entry("a")]
        await made.registry.announce(made.entry("a"), LONG_MS)
        await made.registry.announce(made.entry("short"), 400)
        assert await watch.next() == [made.entry("a"), made.entry("short")]
        assert await watch.next() == [made.entry("a")]


async def test_withdrawing_an_unknown_id_changes_nothing(made: Made) -> None:
    await made.registry.withdraw("never")
    assert await snapshot(made.registry) == []


async def test_two_watchers_see_the_same(made: Made) -> None:
    async with Watch(made.registry) as one, Watch(made.registry) as two:
        await one.next()
        await two.next()
        await made.registry.announce(made.entry("a"), LONG_MS)
        assert await one.next() == await two.next() == [made.entry("a")]


async def test_a_cancelled_watcher_harms_nobody(made: Made) -> None:
    async def watch_for_ever() -> None:
        async with aclosing(cast("AsyncGenerator[list[Any], None]", made.registry.watch())) as changes:
            async for _ in changes:
                started.set()

    started = asyncio.Event()
    task = asyncio.create_task(watch_for_ever())
    await asyncio.wait_for(started.wait(), PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await made.registry.announce(made.entry("a"), LONG_MS)
    assert await snapshot(made.registry) == [made.entry("a")]


@pytest.mark.parametrize("bad", ["", "a:b", "*", "a b", "a\n", "-"])
async def test_ids_that_cannot_be_part_of_a_key_are_refused(made: Made, bad: str) -> None:
    with pytest.raises(ValueError, match=f"not a {made.kind.name} id"):
        await made.registry.announce(made.entry(bad), LONG_MS)
    with pytest.raises(ValueError, match=f"not a {made.kind.name} id"):
        await made.registry.withdraw(bad)


@pytest.mark.parametrize("name", [ROUTERS.name, VLLM_SERVERS.name])
async def test_workers_of_one_redis_meet_none_of_another_kind(redis_url: str, name: str) -> None:
    """A router that knows only workers would take a vLLM server for one."""
    kind, entry = KINDS[name]
    workers, others = RedisRegistry(redis_url, WORKERS), RedisRegistry(redis_url, kind)
    async with Watch(workers) as watch:
        assert await watch.next() == []
        await others.announce(entry("a"), LONG_MS)
        await workers.announce(worker("a"), LONG_MS)
        assert await watch.next() == [worker("a")]
    assert await snapshot(others) == [entry("a")]
    assert not workers.ignored.total()
    await workers.close()
    await others.close()
