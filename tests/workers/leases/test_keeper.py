"""P's shell on a real Redis: it grants, hears releases, survives a Redis that dies, hangs or comes back empty."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest
import redis

from baton_serve.baton.processes.embedded_redis import EmbeddedRedis
from baton_serve.core.leases.holder_state import DuplicateLeaseError
from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.leases.memory_store import MemoryLeaseStore
from baton_serve.core.leases.store import LeaseState, LeaseStatus, LeaseStoreError
from baton_serve.workers.leases.keeper import KeeperStats, LeaseKeeper
from tests.kits.patience import PATIENCE_S

ENGINE = "e0"
#: For leases that no test waits to expire; a quarter of it, the time between two syncs, is longer than any wait here.
LONG_MS = 600_000
#: For those that one does.
SHORT_MS = 400


class Ends:
    """What ``on_end`` was called with, and the possibility to wait for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, LeaseState]] = []
        self._changed = asyncio.Event()

    def __call__(self, lease_id: str, state: LeaseState) -> None:
        self.seen.append((lease_id, state))
        self._changed.set()

    async def wait(self, count: int) -> list[tuple[str, LeaseState]]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.seen) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.seen


@pytest.fixture
def router(redis_url: str) -> Iterator[RedisLeaseStore]:
    """What a router does to the same leases."""
    store = RedisLeaseStore(redis_url)
    yield store
    store.close()


@asynccontextmanager
async def keeping(
    where: str | MemoryLeaseStore, ends: Ends, *, duration_ms: int = LONG_MS, redis_grace_ms: int = LONG_MS
) -> AsyncIterator[LeaseKeeper]:
    store = RedisLeaseStore(where, socket_timeout_s=0.2) if isinstance(where, str) else where
    failures: list[Exception] = []
    keeper = LeaseKeeper(
        store, ENGINE, on_end=ends, on_failed=failures.append, duration_ms=duration_ms, redis_grace_ms=redis_grace_ms
    )
    keeper.start()
    try:
        yield keeper
    finally:
        await keeper.stop()
        assert failures == []


async def until(store: RedisLeaseStore, lease_id: str, *states: LeaseState) -> None:
    """Wait until the store answers one of ``states``. The store tells nobody, so this asks."""

    def reached() -> bool:
        try:
            return store.renew(ENGINE, [lease_id], 1)[0].state in states
        except LeaseStoreError:
            return False

    await eventually(reached)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  (what is asked for has no event that a test could see)
            await asyncio.sleep(0.005)


async def stored(keeper: LeaseKeeper, lease_id: str) -> None:
    """Grant a lease, and wait until the store has it."""
    keeper.grant(lease_id)
    await eventually(lambda: "granting" not in repr(keeper))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The beginnings of what the keeper wrote into the log."""
    return [
        one.getMessage().partition(":")[0] for one in caplog.records if one.name == "baton_serve.workers.leases.keeper"
    ]


async def test_a_lease_is_held_at_once_and_the_store_has_it_soon(redis_url: str, router: RedisLeaseStore) -> None:
    async with keeping(redis_url, Ends()) as keeper:
        keeper.grant("a")
        assert len(keeper) == 1
        with pytest.raises(DuplicateLeaseError):
            keeper.grant("a")
        with pytest.raises(ValueError, match="not an engine or lease id"):
            keeper.grant("a:b")
        await until(router, "a", LeaseState.HELD)
        assert [status.lease_id for status in router.held(ENGINE)] == ["a"]


async def test_grants_and_reads_that_come_together_are_told_together() -> None:
    """Two hundred leases take two calls, and some more if the machine is slow or the listener begins meanwhile."""
    store = Counting()
    async with keeping(store, Ends()) as keeper:
        await stored(keeper, "first")
        store.calls.clear()
        for number in range(100):
            keeper.grant(f"read-{number}")
            await asyncio.sleep(0)
            assert keeper.tell(f"read-{number}", LeaseState.DONE)
            keeper.grant(f"kept-{number}")
        await eventually(lambda: store.num_done == 100 and len(store.held(ENGINE)) == 101)
    assert len(store.calls) < 20


async def test_what_has_been_read_is_told_also_when_the_keeper_stops_at_once() -> None:
    store = MemoryLeaseStore()
    async with keeping(store, Ends()) as keeper:
        keeper.grant("a")
        keeper.tell("a", LeaseState.DONE)
    assert store.renew(ENGINE, ["a"], 1)[0].state is LeaseState.DONE


async def test_a_release_by_a_router_ends_the_lease(redis_url: str, router: RedisLeaseStore) -> None:
    ends = Ends()
    async with keeping(redis_url, ends) as keeper:
        await stored(keeper, "a")
        await stored(keeper, "b")
        router.release(ENGINE, ["a"])
        assert await ends.wait(1) == [("a", LeaseState.RELEASED)]
        assert len(keeper) == 1
        assert keeper.stats.released == 1
        assert router.renew(ENGINE, ["a"], 1)[0].state is LeaseState.RELEASED


async def test_a_release_that_overtakes_its_grant_ends_the_lease_at_once(
    redis_url: str, router: RedisLeaseStore
) -> None:
    ends = Ends()
    async with keeping(redis_url, ends) as keeper:
        router.release(ENGINE, ["a"])
        await stored(keeper, "b")
        keeper.grant("a")
        assert await ends.wait(1) == [("a", LeaseState.RELEASED)]
        assert [status.lease_id for status in router.held(ENGINE)] == ["b"]
        assert (len(keeper), keeper.stats.released) == (1, 1)


async def test_a_release_that_reaches_an_emptied_redis_ends_the_lease_at_once(own_redis: EmbeddedRedis) -> None:
    ends = Ends()
    router = RedisLeaseStore(own_redis.url)
    async with keeping(own_redis.url, ends) as keeper:
        await stored(keeper, "a")
        with redis.Redis.from_url(own_redis.url) as client:
            client.flushall()
        router.release(ENGINE, ["a"])
        assert await ends.wait(1) == [("a", LeaseState.RELEASED)]
    router.close()


async def test_ends_that_the_engine_tells_reach_the_store(redis_url: str, router: RedisLeaseStore) -> None:
    ends = Ends()
    async with keeping(redis_url, ends) as keeper:
        await stored(keeper, "a")
        await stored(keeper, "b")
        assert keeper.tell("a", LeaseState.DONE)
        assert keeper.tell("b", LeaseState.RELEASED)
        await until(router, "a", LeaseState.DONE)
        await until(router, "b", LeaseState.RELEASED)
        assert router.held(ENGINE) == []
        assert not keeper.tell("a", LeaseState.DONE)
        assert not keeper.tell("a", LeaseState.RELEASED)
        assert keeper.stats == KeeperStats(granted=2, done=1, dropped=1, late_done=1)
    assert ends.seen == [], "the engine has ended them"


async def test_a_lease_that_nobody_renews_expires(redis_url: str, router: RedisLeaseStore) -> None:
    ends = Ends()
    async with keeping(redis_url, ends, duration_ms=SHORT_MS) as keeper:
        await stored(keeper, "a")
        assert await ends.wait(1) == [("a", LeaseState.EXPIRED)]
        assert keeper.stats.expired == 1
        assert router.renew(ENGINE, ["a"], 1)[0].state is LeaseState.EXPIRED


async def test_a_renewed_lease_outlives_its_first_duration(redis_url: str, router: RedisLeaseStore) -> None:
    ends = Ends()
    async with keeping(redis_url, ends, duration_ms=SHORT_MS) as keeper:
        await stored(keeper, "renewed")
        router.renew(ENGINE, ["renewed"], LONG_MS)
        await stored(keeper, "left")
        assert await ends.wait(1) == [("left", LeaseState.EXPIRED)]
        assert len(keeper) == 1


async def test_stopping_ends_what_is_left_so_that_routers_know(redis_url: str, router: RedisLeaseStore) -> None:
    ends = Ends()
    async with keeping(redis_url, ends) as keeper:
        await stored(keeper, "a")
    assert ends.seen == [("a", LeaseState.RELEASED)]
    assert router.renew(ENGINE, ["a"], 1)[0].state is LeaseState.RELEASED
    await keeper.stop()


async def test_a_keeper_that_was_never_started_stops(redis_url: str) -> None:
    await LeaseKeeper(RedisLeaseStore(redis_url), ENGINE, on_end=Ends(), on_failed=[].append).stop()


async def test_an_emptied_redis_is_noticed_and_the_lease_granted_again(own_redis: EmbeddedRedis) -> None:
    ends = Ends()
    async with keeping(own_redis.url, ends, duration_ms=2_000) as keeper:
        await stored(keeper, "a")
        own_redis.kill()
        own_redis.start()
        router = RedisLeaseStore(own_redis.url)
        await until(router, "a", LeaseState.HELD)
        router.renew(ENGINE, ["a"], LONG_MS)
        router.release(ENGINE, ["a"])
        assert await ends.wait(1) == [("a", LeaseState.RELEASED)]
        router.close()


async def test_without_redis_leases_are_kept_until_the_grace_is_over(
    own_redis: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    ends = Ends()
    async with keeping(own_redis.url, ends, duration_ms=SHORT_MS, redis_grace_ms=1_500) as keeper:
        await stored(keeper, "a")
        own_redis.kill()
        await eventually(lambda: not keeper.reachable)
        keeper.grant("b")
        assert keeper.tell("b", LeaseState.DONE)
        assert len(keeper) == 1
        assert await ends.wait(1) == [("a", LeaseState.EXPIRED)]
        assert keeper.stats.store_errors > 0
    assert said(caplog) == ["the lease store does not answer, leases are kept", "leases are given up"]


async def test_pressure_without_redis_gives_up_what_is_overdue(own_redis: EmbeddedRedis) -> None:
    ends = Ends()
    async with keeping(own_redis.url, ends, duration_ms=SHORT_MS) as keeper:
        await stored(keeper, "a")
        own_redis.kill()
        await eventually(lambda: keeper.give_up_oldest() == "a")
        assert ends.seen == [("a", LeaseState.EXPIRED)]
        assert keeper.stats.given_up == 1


async def test_a_hung_redis_delays_no_grant_and_a_release_is_heard_after_it(
    own_redis: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ends = Ends()
    router = RedisLeaseStore(own_redis.url)
    async with keeping(own_redis.url, ends) as keeper:
        await stored(keeper, "a")
        os.kill(own_redis.pid, signal.SIGSTOP)
        keeper.grant("b")
        await eventually(lambda: not keeper.reachable)
        assert len(keeper) == 2
        os.kill(own_redis.pid, signal.SIGCONT)
        await until(router, "b", LeaseState.HELD)
        router.release(ENGINE, ["a"])
        assert await ends.wait(1) == [("a", LeaseState.RELEASED)]
    router.close()
    assert said(caplog) == ["the lease store does not answer, leases are kept", "the lease store answers again"]


class Counting(MemoryLeaseStore):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.num_done = 0

    def grant(self, engine_id: str, lease_ids: Sequence[str], duration_ms: int) -> list[str]:
        self.calls.append("grant")
        return super().grant(engine_id, lease_ids, duration_ms)

    def reap(self, engine_id: str, lease_ids: Sequence[str], done: Sequence[str]) -> list[LeaseStatus]:
        self.calls.append("reap")
        self.num_done += len(done)
        return super().reap(engine_id, lease_ids, done)


class Broken(MemoryLeaseStore):
    """Raises what no store should, from the verb of this name."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self._verb = verb

        setattr(self, verb, self._break)

    def _break(self, *_: object) -> None:
        raise RuntimeError(f"{self._verb} is broken")


@pytest.mark.parametrize("verb", ["grant", "reap", "wakeups"])
async def test_what_the_threads_do_not_expect_is_told_on_the_loop(verb: str, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise a worker would go on without a keeper, and no lease would ever end."""
    failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    ends = Ends()
    keeper = LeaseKeeper(Broken(verb), ENGINE, on_end=ends, on_failed=failed.set_result, duration_ms=SHORT_MS)
    keeper.start()
    keeper.grant("a")
    async with asyncio.timeout(PATIENCE_S):
        error = await failed
    assert str(error) == f"{verb} is broken" and f"{verb} is broken" in caplog.text
    await keeper.stop()
    assert [lease_id for lease_id, _ in ends.seen] == ["a"]
