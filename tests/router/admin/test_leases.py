"""``/admin/leases`` where somebody else has written into Redis."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
import redis
from fastapi import FastAPI

from baton_serve.baton.processes.embedded_redis import EmbeddedRedis
from baton_serve.core.leases.in_redis.keys import leases_key
from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.router.admin.leases import lease_routes
from baton_serve.router.edge.error_pages import use_our_errors
from tests.kits.router.cluster import Cluster


async def listed(cluster: Cluster, store: RedisLeaseStore, path: str = "/leases") -> httpx.Response:
    app = FastAPI()
    use_our_errors(app)
    app.include_router(lease_routes(cluster.here, cluster.peers, cluster.pool, store))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as client:
        return await client.get(path)


def spoil(client: redis.Redis, how: str, key: str) -> None:
    values: dict[str, Any] = {
        "string": lambda: client.set(key, "x"),
        "list": lambda: client.lpush(key, "x"),
        "hash": lambda: client.hset(key, "x", "y"),
    }
    values[how]()


@pytest.mark.parametrize("how", ["string", "list", "hash"])
async def test_a_foreign_type_under_one_engines_key_spoils_the_listing_of_that_engine_only(
    cluster: Cluster, redis_url: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = (await cluster.add("prefill")).engine_id, (await cluster.add("decode")).engine_id
    store = RedisLeaseStore(redis_url)
    store.grant(sound, ["a"], 60_000)
    with redis.Redis.from_url(redis_url) as foreign:
        spoil(foreign, how, leases_key(broken))
    with caplog.at_level(logging.WARNING):
        answer = await listed(cluster, store)
    assert answer.status_code == 200, answer.text
    assert [lease["lease_id"] for lease in answer.json()["leases"]] == ["a"]
    assert answer.json()["unreadable_engines"] == [broken]
    (line,) = [record.getMessage() for record in caplog.records]
    assert broken in line and "WRONGTYPE" in line
    only = await listed(cluster, store, f"/leases?engine={sound}")
    assert (len(only.json()["leases"]), only.json()["unreadable_engines"]) == (1, [])
    store.close()


async def test_without_redis_there_is_no_listing(cluster: Cluster, own_redis: EmbeddedRedis) -> None:
    await cluster.add("prefill")
    store = RedisLeaseStore(own_redis.url)
    own_redis.kill()
    answer = await listed(cluster, store)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "lease_store")
    store.close()
