"""Clients of a Redis whose primary changes, of one in cluster mode, and the URLs of all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.leases.store import LeaseState, LeaseStoreError
from baton_serve.core.protocol.addresses import check_redis_url, has_password, redis_place, with_password
from baton_serve.core.redis_client import CLUSTER_MODE, cluster_complaint, connect
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.registry.redis_registry import RedisRegistry
from tests.kits.redis_proxy import RedisProxy
from tests.kits.redis_servers import RedisPair, Server, WatchedRedis
from tests.kits.registry import LONG_MS, worker


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[RedisPair]:
    with RedisPair(tmp_path) as started:
        yield started


@pytest.fixture
async def door(pair: RedisPair) -> AsyncIterator[str]:
    """A port that leads to the primary, as a proxy or a name does."""
    async with RedisProxy(lambda: pair.primary.port) as proxy:
        yield f"redis://127.0.0.1:{proxy.port}/0"


async def test_leases_follow_the_primary_while_connections_stay_open(pair: RedisPair, door: str) -> None:
    with contextlib.closing(RedisLeaseStore(door)) as store:
        assert await asyncio.to_thread(store.grant, "e", ["a"], 60_000) == []
        pair.swap()
        assert await asyncio.to_thread(store.grant, "e", ["b"], 60_000) == []
        (renewed,) = (await asyncio.to_thread(store.renew_all, {"e": ["b"]}, 60_000)).values()
        assert isinstance(renewed, list) and renewed[0].state is LeaseState.HELD


async def test_announcements_follow_the_primary_while_connections_stay_open(pair: RedisPair, door: str) -> None:
    registry = RedisRegistry(door, WORKERS)
    try:
        await registry.announce(worker("w1"), LONG_MS)
        pair.swap()
        await registry.announce(worker("w2"), LONG_MS)
        assert pair.primary.client.exists(f"{WORKERS.key_prefix}w2")
    finally:
        await registry.close()


def test_a_script_that_only_reads_is_no_reason_to_leave_a_replica(pair: RedisPair) -> None:
    pair.swap()
    replica = pair.servers[1]
    client = connect(redis.Redis, f"redis://127.0.0.1:{replica.port}", 5.0, retries=0)
    with client:
        assert client.eval("return redis.call('GET', KEYS[1])", 1, "nothing") is None
        with pytest.raises(redis.ConnectionError, match="replica"):
            client.eval("return redis.call('SET', KEYS[1], 1)", 1, "key")


async def test_sentinels_say_where_the_primary_is(tmp_path: Path) -> None:
    with WatchedRedis(tmp_path) as watched:
        store, registry = RedisLeaseStore(watched.url), RedisRegistry(watched.url, WORKERS)
        try:
            assert store.grant("e", ["a"], 60_000) == []
            await registry.announce(worker("w1"), LONG_MS)
            await asyncio.to_thread(watched.fail_over)
            assert store.grant("e", ["b"], 60_000) == []
            await registry.announce(worker("w2"), LONG_MS)
            watched.primary.client.wait(1, 1000)
            await asyncio.to_thread(watched.kill_primary)
            assert {lease.lease_id for lease in store.held("e")} == {"a", "b"}
            await registry.announce(worker("w3"), LONG_MS)
        finally:
            store.close()
            await registry.close()


def test_a_redis_in_cluster_mode_is_refused(tmp_path: Path, redis_url: str) -> None:
    config = "cluster-enabled yes", f"cluster-config-file {tmp_path / 'nodes.conf'}"
    with contextlib.closing(Server(tmp_path, *config)) as server:
        url = f"redis://127.0.0.1:{server.port}"
        assert cluster_complaint(url, 5.0) == CLUSTER_MODE
        server.ask("CLUSTER", "ADDSLOTS", 0)
        server.ask("CLUSTER", "MEET", "127.0.0.1", server.port)
        with contextlib.closing(RedisLeaseStore(url)) as store, pytest.raises(LeaseStoreError):
            store.grant("e", ["a"], 1000)
    assert cluster_complaint(redis_url, 5.0) is None
    assert cluster_complaint(url, 0.5) is None, "nobody is there to ask"


@pytest.mark.parametrize("scheme", ["valkey", "valkeys"])
def test_a_url_of_valkey_means_the_same_as_one_of_redis(scheme: str) -> None:
    assert check_redis_url(f"{scheme}://host:1/2")
    client = connect(redis.Redis, f"{scheme}://host:1/2", 1.0, retries=0)
    assert client.connection_pool.connection_kwargs["db"] == 2
    tls = issubclass(client.connection_pool.connection_class, redis.SSLConnection)
    assert tls is (scheme == "valkeys")


@pytest.mark.parametrize("retries", [0, 1])
def test_a_client_without_retries_tries_nothing_again(free_port: int, retries: int) -> None:
    client = connect(redis.Redis, f"redis://127.0.0.1:{free_port}", 1.0, retries=retries)
    retry, tried = client.connection_pool.connection_kwargs["retry"], []

    def fail() -> None:
        raise redis.ConnectionError("lost")

    with pytest.raises(redis.ConnectionError):
        retry.call_with_retry(fail, tried.append)
    assert len(tried) == (0 if retries == 0 else 2), "what is told of a failure connects a subscription anew"


def test_a_url_of_sentinels_tells_all_that_its_connections_need() -> None:
    url = with_password("rediss+sentinel://me@one:1,two/main/3?sentinel_password=x&ssl_cert_reqs=none", "p:w")
    assert check_redis_url(url) == url and has_password(url)
    place = redis_place(url)
    assert (place.sentinels, place.service, place.is_tls) == ([("one", 1), ("two", 26379)], "main", True)
    for kind in (redis.Redis, redis.asyncio.Redis):
        pool = connect(kind, url, 1.0, retries=0).connection_pool  # type: ignore[type-var]
        kwargs = pool.connection_kwargs
        assert (kwargs["username"], kwargs["password"], kwargs["db"]) == ("me", "p:w", 3)
        (asked, _) = pool.sentinel_manager.sentinels
        assert asked.connection_pool.connection_kwargs["password"] == "x"
        assert "ssl_cert_reqs" in asked.connection_pool.connection_kwargs


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://host",
        "redis+sentinel://host/",
        "redis+sentinel:///main",
        "redis+sentinel://a,,b/main",
        "redis+sentinel://a:x/main",
        "redis+sentinel://a/main/x",
        "sentinel://a/main",
    ],
)
def test_malformed_urls_of_sentinels_are_refused(url: str) -> None:
    with pytest.raises(ValueError):
        check_redis_url(url)


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "redis://127.0.0.1:1/0?no_such_option=1",
        "redis://h/0?protocol=9",
        "redis+sentinel://a/main?nonsense=1",
        "redis+sentinel://a/main?sentinel_nonsense=1",
    ],
)
def test_a_malformed_url_is_refused_before_connecting(kind: type[redis.Redis], url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|option"):
        connect(kind, url, 1.0, retries=0)
