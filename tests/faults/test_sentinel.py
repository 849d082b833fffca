"""Sentinels replace the primary of Redis, planned and after its death, with requests in every state: nobody notices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from baton_serve.baton.cluster.cluster import Cluster
from baton_serve.baton.torture.clients.traffic import Traffic
from baton_serve.baton.torture.shape import Shape
from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.leases.store import LeaseStoreError
from tests.kits.redis_servers import WatchedRedis
from tests.kits.whole.faults import WORKER_FLAGS, Baton, running, under_load

if TYPE_CHECKING:
    from tests.conftest import Tell

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(prefill=2, decode=2, routers=2, worker_flags=WORKER_FLAGS)
#: Answers that come after the primary was replaced.
NUM_ANSWERS = 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Baton, WatchedRedis]]:
    folder: Path = tmp_path_factory.mktemp("sentinel")
    cluster = Cluster(folder, SHAPE.specs)
    cluster.redis = redis = WatchedRedis(folder)  # type: ignore[assignment]
    async with running(folder, SHAPE, cluster=cluster) as baton:
        yield baton, redis


def _seconds_without_leases(store: RedisLeaseStore, replace: Callable[[], None]) -> float:
    """How long no lease could be granted, from before the primary was replaced."""
    began_s = time.monotonic()
    replace()
    while True:
        try:
            store.grant("probe", [f"l{time.monotonic_ns()}"], 1000)
        except LeaseStoreError:
            time.sleep(0.05)
        else:
            return time.monotonic() - began_s


@pytest.mark.parametrize("how", ["planned", "killed"])  # in this order: a dead server cannot take over
async def test_nobody_notices(watched: tuple[Baton, WatchedRedis], how: str, tell: Tell) -> None:
    baton, redis = watched
    store = RedisLeaseStore(redis.url)
    away_s = 0.0

    async def replaced(traffic: Traffic) -> None:
        nonlocal away_s
        replace = redis.fail_over if how == "planned" else redis.kill_primary
        away_s = await asyncio.to_thread(_seconds_without_leases, store, replace)
        await traffic.ended(NUM_ANSWERS)

    try:
        told = await under_load(baton, replaced)
    finally:
        store.close()
    tell(f"primary {how}: no leases for {away_s:.1f} s; {told}")
    assert told.num_across and told.num_meanwhile
