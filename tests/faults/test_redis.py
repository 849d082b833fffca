"""Whatever happens to Redis, nobody gets a wrong token or an error, and nothing stays held."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import redis

from baton_serve.baton.cluster.cluster import REDIS, Cluster
from baton_serve.baton.torture.shape import Shape
from tests.kits.whole.faults import LONG, WORKER_FLAGS, Baton, running, under_load
from tests.kits.whole.redis_proxy import ProxiedRedis, RedisProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from baton_serve.baton.torture.clients.traffic import Traffic

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(prefill=2, decode=2, routers=2, worker_flags=WORKER_FLAGS)
#: A tenth of the default durations, for what is about their end.
SHORT = {"redis-grace-ms": 6000, "lease-duration-ms": 2000}
SHORT_SHAPE = Shape(
    prefill=2,
    decode=2,
    routers=2,
    worker_flags=WORKER_FLAGS | SHORT,
    router_flags=SHORT | {"lease-renew-interval-ms": 500},
)
PAUSE_S = 5.0
GONE_S = 30.0
SLOW_S = 0.2
#: Answers that come in a time in which Redis is not well.
NUM_ANSWERS = 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def baton(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Baton]:
    async with running(tmp_path_factory.mktemp("redis"), SHAPE) as started:
        yield started


def ask_redis(cluster: Cluster, *command: str | int) -> object:
    with redis.Redis.from_url(cluster.redis.url) as client:
        return client.execute_command(*command)


def restarted(cluster: Cluster) -> Callable[[Traffic], Awaitable[None]]:
    async def hurt(_traffic: Traffic) -> None:
        cluster.restart_redis()

    return hurt


def emptied(cluster: Cluster) -> Callable[[Traffic], Awaitable[None]]:
    async def hurt(_traffic: Traffic) -> None:
        ask_redis(cluster, "FLUSHALL")

    return hurt


def paused(cluster: Cluster) -> Callable[[Traffic], Awaitable[None]]:
    async def hurt(_traffic: Traffic) -> None:
        cluster.signal(REDIS, signal.SIGSTOP)
        try:
            await asyncio.sleep(PAUSE_S)
        finally:
            cluster.signal(REDIS, signal.SIGCONT)

    return hurt


def refusing(
    cluster: Cluster, begin: tuple[str | int, ...], end: tuple[str | int, ...], error: type[Exception]
) -> Callable[[Traffic], Awaitable[None]]:
    """From one command to another writes are refused with this error."""

    async def hurt(traffic: Traffic) -> None:
        ask_redis(cluster, *begin)
        try:
            with pytest.raises(error):
                ask_redis(cluster, "SET", "probe", "1")
            await traffic.ended(NUM_ANSWERS)
            await asyncio.sleep(PAUSE_S)
        finally:
            ask_redis(cluster, *end)

    return hurt


def full(cluster: Cluster) -> Callable[[Traffic], Awaitable[None]]:
    """Every command that would need memory is refused."""
    setting = "CONFIG", "SET", "maxmemory"
    return refusing(cluster, (*setting, 1), (*setting, 0), redis.exceptions.OutOfMemoryError)


def read_only(cluster: Cluster) -> Callable[[Traffic], Awaitable[None]]:
    """As after a failover that went wrong: it takes itself for the replica of a server that is not there."""
    verb = "REPLICAOF"
    return refusing(cluster, (verb, "127.0.0.1", 1), (verb, "NO", "ONE"), redis.exceptions.ReadOnlyError)


def old_replica(cluster: Cluster) -> Callable[[Traffic], Awaitable[None]]:
    """It comes back with what it knew some seconds ago: leases that have ended since, and none of the new ones."""

    async def hurt(traffic: Traffic) -> None:
        folder = Path(cluster.redis.url.removeprefix("unix://").partition("?")[0]).parent
        dump = folder / "dump.rdb"
        ask_redis(cluster, "SAVE")
        try:
            await traffic.ended(NUM_ANSWERS)
            cluster.restart_redis()
        finally:
            dump.unlink()
        assert ask_redis(cluster, "DBSIZE"), "it came back empty"

    return hurt


def gone(cluster: Cluster, seconds: float) -> Callable[[Traffic], Awaitable[None]]:
    async def hurt(_traffic: Traffic) -> None:
        cluster.redis.kill()
        try:
            await asyncio.sleep(seconds)
        finally:
            cluster.redis.start()

    return hurt


@pytest.mark.parametrize("fault", [restarted, emptied, paused, full, read_only, old_replica])
async def test_nobody_notices(
    baton: Baton, fault: Callable[[Cluster], Callable[[Traffic], Awaitable[None]]], capsys: pytest.CaptureFixture[str]
) -> None:
    told = await under_load(baton, fault(baton.cluster))
    with capsys.disabled():
        print(f"\nRedis {fault.__name__}: {told}")
    assert told.num_across
    assert told.num_meanwhile or fault in {restarted, emptied}


@pytest.mark.skipif(not LONG, reason="FAULTS_LONG is not set")
async def test_gone_for_half_of_the_grace(baton: Baton, capsys: pytest.CaptureFixture[str]) -> None:
    told = await under_load(baton, gone(baton.cluster, GONE_S))
    with capsys.disabled():
        print(f"\nRedis gone for {GONE_S:g} s: {told}")
    assert told.num_across and told.num_meanwhile


async def test_gone_for_longer_than_the_grace_then_for_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running(tmp_path, SHORT_SHAPE) as baton:
        told = await under_load(baton, gone(baton.cluster, 1.5 * SHORT["redis-grace-ms"] / 1000))
        with capsys.disabled():
            print(f"\nRedis gone for longer than the grace: {told}")
        assert told.num_across and told.num_meanwhile

        async def killed(traffic: Traffic) -> None:
            baton.cluster.redis.kill()
            await traffic.ended(3 * NUM_ANSWERS)

        told = await under_load(baton, killed)
        with capsys.disabled():
            print(f"\nRedis gone for good: {told}")
        assert told.num_across and told.num_meanwhile


async def test_slow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command takes 200 ms more: a grant is just not waited for, a renewal comes in time."""
    door = tmp_path / "door.sock"
    cluster = Cluster(tmp_path, SHAPE.specs)
    cluster.redis = behind = ProxiedRedis(door, tmp_path / "redis.log")
    async with (
        RedisProxy(door, lambda: behind.direct_path) as proxy,
        running(tmp_path, SHAPE, cluster=cluster) as baton,
    ):

        async def slow(traffic: Traffic) -> None:
            proxy.delay_s = SLOW_S
            try:
                await traffic.ended(3 * NUM_ANSWERS)
            finally:
                proxy.delay_s = 0.0

        told = await under_load(baton, slow)
        with capsys.disabled():
            print(f"\nRedis slow, {proxy.num_delayed} commands held up: {told}")
        assert told.num_across and told.num_meanwhile and proxy.num_delayed
