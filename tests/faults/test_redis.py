"""Whatever happens to Redis, nobody gets a wrong token or an error, and nothing stays held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import redis

from baton_serve.baton.cluster.cluster import Cluster
from baton_serve.baton.cluster.process import stopped
from baton_serve.baton.torture.clients.traffic import Traffic
from baton_serve.baton.torture.shape import Shape
from tests.kits.redis_proxy import ProxiedRedis, RedisProxy
from tests.kits.whole.faults import LONG, WORKER_FLAGS, Baton, running, under_load

if TYPE_CHECKING:
    from tests.conftest import Tell

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


async def restarted(cluster: Cluster, _traffic: Traffic) -> None:
    cluster.restart_redis()


async def emptied(cluster: Cluster, _traffic: Traffic) -> None:
    ask_redis(cluster, "FLUSHALL")


async def paused(cluster: Cluster, _traffic: Traffic) -> None:
    with stopped(cluster.redis.pid):
        await asyncio.sleep(PAUSE_S)


async def refuse(
    cluster: Cluster,
    traffic: Traffic,
    begin: tuple[str | int, ...],
    end: tuple[str | int, ...],
    error: type[Exception],
) -> None:
    """From one command to another writes are refused with this error."""
    ask_redis(cluster, *begin)
    try:
        with pytest.raises(error):
            ask_redis(cluster, "SET", "probe", "1")
        await traffic.ended(NUM_ANSWERS)
        await asyncio.sleep(PAUSE_S)
    finally:
        ask_redis(cluster, *end)


async def full(cluster: Cluster, traffic: Traffic) -> None:
    """Every command that would need memory is refused."""
    setting = "CONFIG", "SET", "maxmemory"
    await refuse(cluster, traffic, (*setting, 1), (*setting, 0), redis.exceptions.OutOfMemoryError)


async def read_only(cluster: Cluster, traffic: Traffic) -> None:
    """As after a failover that went wrong: it takes itself for the replica of a server that is not there."""
    verb = "REPLICAOF"
    await refuse(cluster, traffic, (verb, "127.0.0.1", 1), (verb, "NO", "ONE"), redis.exceptions.ReadOnlyError)


async def old_replica(cluster: Cluster, traffic: Traffic) -> None:
    """It comes back with what it knew some seconds ago: leases that have ended since, and none of the new ones."""
    folder = Path(cluster.redis.url.removeprefix("unix://").partition("?")[0]).parent
    ask_redis(cluster, "SAVE")
    try:
        await traffic.ended(NUM_ANSWERS)
        cluster.restart_redis()
    finally:
        (folder / "dump.rdb").unlink()
    assert ask_redis(cluster, "DBSIZE"), "it came back empty"


def gone(cluster: Cluster, seconds: float) -> Callable[[Traffic], Awaitable[None]]:
    async def hurt(_traffic: Traffic) -> None:
        cluster.redis.kill()
        try:
            await asyncio.sleep(seconds)
        finally:
            cluster.redis.start()

    return hurt


@pytest.mark.parametrize("fault", [restarted, emptied, paused, full, read_only, old_replica])
async def test_nobody_notices(baton: Baton, fault: Callable[[Cluster, Traffic], Awaitable[None]], tell: Tell) -> None:
    told = await under_load(baton, partial(fault, baton.cluster))
    tell(f"Redis {fault.__name__}: {told}")
    assert told.num_across
    assert told.num_meanwhile or fault in {restarted, emptied}


@pytest.mark.skipif(not LONG, reason="FAULTS_LONG is not set")
async def test_gone_for_half_of_the_grace(baton: Baton, tell: Tell) -> None:
    told = await under_load(baton, gone(baton.cluster, GONE_S))
    tell(f"Redis gone for {GONE_S:g} s: {told}")
    assert told.num_across and told.num_meanwhile


async def test_gone_for_longer_than_the_grace_then_for_good(tmp_path: Path, tell: Tell) -> None:
    async with running(tmp_path, SHORT_SHAPE) as baton:
        told = await under_load(baton, gone(baton.cluster, 1.5 * SHORT["redis-grace-ms"] / 1000))
        tell(f"Redis gone for longer than the grace: {told}")
        assert told.num_across and told.num_meanwhile

        async def killed(traffic: Traffic) -> None:
            baton.cluster.redis.kill()
            await traffic.ended(3 * NUM_ANSWERS)

        told = await under_load(baton, killed)
        tell(f"Redis gone for good: {told}")
        assert told.num_across and told.num_meanwhile


async def test_slow(tmp_path: Path, tell: Tell) -> None:
    """Each command takes 200 ms more: a grant is just not waited for, a renewal comes in time."""
    door = tmp_path / "door.sock"
    cluster = Cluster(tmp_path, SHAPE.specs)
    cluster.redis = behind = ProxiedRedis(door, tmp_path / "redis.log")
    async with (
        RedisProxy(lambda: behind.direct_path, door) as proxy,
        running(tmp_path, SHAPE, cluster=cluster) as baton,
    ):

        async def slow(traffic: Traffic) -> None:
            proxy.delay_s = SLOW_S
            try:
                await traffic.ended(3 * NUM_ANSWERS)
            finally:
                proxy.delay_s = 0.0

        told = await under_load(baton, slow)
        tell(f"Redis slow, {proxy.num_delayed} commands held up: {told}")
        assert told.num_across and told.num_meanwhile and proxy.num_delayed
