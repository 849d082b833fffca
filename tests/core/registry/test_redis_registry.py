"""What only the registry in Redis can get wrong: foreign values, a Redis that dies, hangs or comes back empty."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest
import redis
from redis.asyncio.client import PubSub

from baton_serve.baton.processes.embedded_redis import EmbeddedRedis
from baton_serve.core.process.task_end import end_task
from baton_serve.core.protocol.worker import WorkerStatus
from baton_serve.core.registry import redis_registry
from baton_serve.core.registry.announcement import WORKERS, encode
from baton_serve.core.registry.redis_registry import RedisRegistry
from baton_serve.core.registry.store import RegistryError
from tests.kits.patience import PATIENCE_S
from tests.kits.registry import LONG_MS, Watch, worker


async def announcing(registry: RedisRegistry[WorkerStatus], worker_id: str, first: asyncio.Event) -> None:
    """What a worker does: announce itself again and again, whatever happens to Redis."""
    while True:
        try:
            await registry.announce(worker(worker_id), 1_000)
            first.set()
        except RegistryError:
            pass
        await asyncio.sleep(0.02)


async def test_every_announcement_in_redis_expires(redis_url: str) -> None:
    registry = RedisRegistry(redis_url, WORKERS)
    await registry.announce(worker("a"), LONG_MS)
    with redis.Redis.from_url(redis_url) as client:
        assert 0 < client.pttl(WORKERS.key_prefix + "a") <= LONG_MS
    await registry.close()


async def test_announcements_that_come_together_are_one_list_or_a_few(redis_url: str) -> None:
    """Otherwise the work of a router grows with the square of the number of workers."""
    registry, num_workers = RedisRegistry(redis_url, WORKERS), 200
    async with Watch(registry) as watch:
        assert await watch.next() == []
        with redis.Redis.from_url(redis_url) as client, client.pipeline() as together:
            for number in range(num_workers):
                announcement = WORKERS.announce(worker(f"w{number}"), LONG_MS, 0)
                together.publish(WORKERS.channel, encode(announcement))
            together.execute()
        num_lists = 1
        while len(await watch.next()) < num_workers:
            num_lists += 1
        assert num_lists < num_workers / 5
    await registry.close()


async def test_a_list_has_more_than_asyncio_reads_ahead(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a router takes 128 KiB for each list, and falls behind workers that announce more."""
    monkeypatch.setattr(redis_registry, "LIST_GAP_MS", 1_000)  # many times what it takes to read all of it
    registry, num_workers, num_reports = RedisRegistry(redis_url, WORKERS), 200, 10
    async with Watch(registry) as watch:
        assert await watch.next() == []
        num_lists, num_bytes = 0, 0
        with redis.Redis.from_url(redis_url) as client, client.pipeline() as together:
            for number in range(num_workers * num_reports):
                status = worker(f"w{number % num_workers}", running=number // num_workers)
                data = encode(WORKERS.announce(status, LONG_MS, 0))
                num_bytes += len(data)
                together.publish(WORKERS.channel, data)
            together.execute()
        assert num_bytes > 6 * 128 * 1024
        expected = sorted(f"w{number}" for number in range(num_workers))
        last: list[WorkerStatus] = []
        while [s.record.worker_id for s in last if s.load.running == num_reports - 1] != expected:
            last = await watch.next()
            num_lists += 1
        assert num_lists <= 3
    await registry.close()


async def test_without_redis_every_call_is_a_registry_error(free_port: int) -> None:
    registry = RedisRegistry(f"redis://127.0.0.1:{free_port}", WORKERS)
    for call in (registry.announce(worker("a"), LONG_MS), registry.withdraw("a")):
        with pytest.raises(RegistryError):
            await call
    await registry.close()


async def test_an_emptied_redis_makes_no_worker_vanish(own_redis: EmbeddedRedis) -> None:
    registry, workers = RedisRegistry(own_redis.url, WORKERS), RedisRegistry(own_redis.url, WORKERS)
    announced = asyncio.Event()
    task = asyncio.create_task(announcing(workers, "a", announced))
    await announced.wait()
    seen = []
    async with Watch(registry) as watch:
        seen.append(await watch.next())
        own_redis.kill()
        own_redis.start()
        await workers.announce(worker("new"), LONG_MS)
        seen.append(await watch.next())
    assert seen == [[worker("a")], [worker("a"), worker("new")]]
    await end_task(task)
    await registry.close()
    await workers.close()


async def test_a_worker_that_died_while_redis_was_away_is_forgotten_after_its_ttl(
    own_redis: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "baton_serve.core.registry")
    registry = RedisRegistry(own_redis.url, WORKERS)
    async with Watch(registry) as watch:
        assert await watch.next() == []
        await registry.announce(worker("a"), 500)
        assert await watch.next() == [worker("a")]
        own_redis.kill()
        own_redis.start()
        assert await watch.next() == []
    await registry.close()
    lines = [record.getMessage().partition(",")[0] for record in caplog.records]
    assert (lines[0], lines[-1]) == ("the registry does not answer", "the registry answers again")


async def test_a_hung_redis_keeps_the_known_workers(own_redis: EmbeddedRedis) -> None:
    registry, ttl_s = RedisRegistry(own_redis.url, WORKERS, socket_timeout_s=0.2), 1.5
    async with Watch(registry) as watch:
        assert await watch.next() == []
        await registry.announce(worker("a"), round(ttl_s * 1000))
        assert await watch.next() == [worker("a")]
        os.kill(own_redis.pid, signal.SIGSTOP)
        with pytest.raises(RegistryError):
            await registry.withdraw("other")
        change = asyncio.create_task(watch.next())
        await asyncio.wait([change], timeout=ttl_s + 1)
        assert not change.done(), "nobody can say who is alive"
        os.kill(own_redis.pid, signal.SIGCONT)
        alive = await change
        while alive:
            assert alive == [worker("a")], "until its ttl is over, which begins again"
            alive = await watch.next()
    await registry.close()


async def test_a_watcher_may_start_before_redis(own_redis: EmbeddedRedis) -> None:
    registry = RedisRegistry(own_redis.url, WORKERS)
    own_redis.kill()
    async with Watch(registry) as watch:
        first = asyncio.create_task(watch.next())
        await asyncio.wait([first], timeout=0.1)
        assert not first.done()
        own_redis.start()
        assert await first == []
    await registry.close()


async def test_a_connection_that_cannot_even_be_closed_does_not_end_the_watch(
    own_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, closed = PubSub.aclose, asyncio.Event()

    async def aclose(self: PubSub) -> None:
        await close(self)  # type: ignore[no-untyped-call]
        closed.set()
        raise redis.TimeoutError("closing took too long")

    monkeypatch.setattr(PubSub, "aclose", aclose)
    registry = RedisRegistry(own_redis.url, WORKERS)
    async with Watch(registry) as watch:
        assert await watch.next() == []
        change = asyncio.create_task(watch.next())
        own_redis.kill()
        await asyncio.wait_for(closed.wait(), PATIENCE_S)
        own_redis.start()
        await registry.announce(worker("a"), LONG_MS)
        assert await change == [worker("a")]
    await registry.close()


def test_a_write_to_a_connection_just_closed_is_a_registry_error() -> None:
    """As seen with uvloop when Redis refuses a connection while a pipeline is being written to it."""
    with pytest.raises(RegistryError, match="the handler is closed"), redis_registry._registry_errors():
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
