"""Makes clients of Redis, for threads or for asyncio: of one server, or of the primary that Sentinels name.

A server that was the primary may become a replica while connections to it stay open. The replica refuses every write
(READONLY), for ever. A connection that reads such a refusal closes itself and counts as lost, so that the next one
finds the new primary: Sentinels are asked again, and so is a proxy or a name in front of several servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.retry
import redis.sentinel
from redis.backoff import NoBackoff

from baton_serve.core.protocol.addresses import SENTINEL_SCHEMES, redis_place

ClientT = TypeVar("ClientT", redis.Redis, redis.asyncio.Redis)

#: Why a Redis in cluster mode is refused: its servers answer MOVED for the keys that others of them have.
CLUSTER_MODE: Final = (
    "redis_url is a Redis in cluster mode, which Baton cannot use: it needs one primary, by itself or behind Sentinels "
    "(redis+sentinel://)"
)


class RedisClusterError(redis.RedisError):
    """A server in cluster mode has been asked for a key that another one has."""


def _meaning(error: redis.ResponseError) -> redis.RedisError | None:
    """What the refusal of a command says about the server; None if it is about the command only.

    Redis 6.2 puts the refusal of a write in a script into the middle of the text.
    """
    text = str(error)
    if isinstance(error, redis.ReadOnlyError) or "READONLY " in text or text.startswith("MASTERDOWN"):
        return redis.ConnectionError("this Redis is a replica now")
    return RedisClusterError(CLUSTER_MODE) if isinstance(error, redis.exceptions.MovedError) else None


class _LeavesReplicas:
    """Makes a connection for threads count as lost when its server has become a replica."""

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_response(*args, **kwargs)  # type: ignore[misc]
        except redis.ResponseError as error:
            meaning = _meaning(error)
            if meaning is None:
                raise
            self.disconnect()  # type: ignore[attr-defined]
            raise meaning from error


class _LeavesReplicasAsync:
    """The same for asyncio."""

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().read_response(*args, **kwargs)  # type: ignore[misc]
        except redis.ResponseError as error:
            meaning = _meaning(error)
            if meaning is None:
                raise
            await self.disconnect()  # type: ignore[attr-defined]
            raise meaning from error


def _leaving_replicas(kind: type, connection_class: type) -> type:
    mixin = _LeavesReplicasAsync if issubclass(kind, redis.asyncio.Redis) else _LeavesReplicas
    return type(connection_class.__name__, (mixin, connection_class), {})


def connect(kind: type[ClientT], url: str, socket_timeout_s: float, *, retries: int) -> ClientT:
    """A client with its own pool. It speaks RESP2, which suffices here and which proxies in front of Redis understand.

    A command that fails because the connection is lost, and not by a timeout, is tried ``retries`` times more.

    Raises ValueError for an invalid URL, and for an unknown option in it, which redis-py would only find on connecting.
    """
    modules: Any = redis.asyncio.retry if issubclass(kind, redis.asyncio.Redis) else redis.retry
    options: dict[str, Any] = {
        "socket_timeout": socket_timeout_s,
        "socket_connect_timeout": socket_timeout_s,
        "protocol": 2,
    }
    try:
        # Without retries nothing may be tried again: a subscription would connect anew by itself before it fails.
        retry = modules.Retry(NoBackoff(), retries, (redis.ConnectionError,) if retries else ())
        client = _client(kind, url, options | {"retry": retry})
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, redis.RedisError):
        raise ValueError("the URL of Redis has an option that does not exist") from None
    return client


def _client(kind: type[ClientT], url: str, options: dict[str, Any]) -> ClientT:
    if url.startswith(SENTINEL_SCHEMES):
        return _of_sentinels(kind, url, options)
    plain = url.replace("valkey", "redis", 1) if url.startswith("valkey") else url
    modules: Any = redis.asyncio.connection if issubclass(kind, redis.asyncio.Redis) else redis.connection
    given = modules.parse_url(plain).get("connection_class", modules.Connection)
    client: ClientT = kind.from_url(plain, connection_class=_leaving_replicas(kind, given), **options)
    return client


def close(client: redis.Redis) -> None:
    """Close the client's connections, also to its Sentinels."""
    client.close()
    for sentinel in _sentinels(client):
        sentinel.close()


@contextmanager
def trying_once(url: str, socket_timeout_s: float) -> Iterator[redis.Redis]:
    """A client that repeats no call, closed at the end. Raises ValueError as ``connect`` does."""
    client = connect(redis.Redis, url, socket_timeout_s, retries=0)
    try:
        yield client
    finally:
        close(client)


async def aclose(client: redis.asyncio.Redis) -> None:
    """The same for asyncio."""
    await client.aclose()
    for sentinel in _sentinels(client):
        await sentinel.aclose()


def _sentinels(client: redis.Redis | redis.asyncio.Redis) -> list[Any]:
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    return [] if manager is None else manager.sentinels


def _of_sentinels(kind: type[ClientT], url: str, options: dict[str, Any]) -> ClientT:
    """A client of the primary; each of its connections asks the Sentinels where that is."""
    is_async = issubclass(kind, redis.asyncio.Redis)
    place = redis_place(url)
    given = redis.connection.parse_url(place.url)  # type: ignore[no-untyped-call]
    for name in ("host", "port", "connection_class"):
        given.pop(name, None)
    named = [name for name in given if name.startswith("sentinel_")]
    of_sentinels = options | {name.removeprefix("sentinel_"): given.pop(name) for name in named}
    tls = {name: value for name, value in given.items() if name.startswith("ssl_")} | {"ssl": place.is_tls}
    modules: Any = redis.asyncio.sentinel if is_async else redis.sentinel
    managed = modules.SentinelManagedSSLConnection if place.is_tls else modules.SentinelManagedConnection
    sentinels = modules.Sentinel(place.sentinels, sentinel_kwargs=of_sentinels | tls, **(given | options))
    client: ClientT = sentinels.master_for(
        place.service, redis_class=kind, connection_class=_leaving_replicas(kind, managed)
    )
    return client


def cluster_complaint(url: str, socket_timeout_s: float = 1.0) -> str | None:
    """One sentence if the server is in cluster mode; None if it is not, or cannot be asked."""
    try:
        with trying_once(url, socket_timeout_s) as client:
            is_cluster = client.info("cluster").get("cluster_enabled")
    except (redis.RedisError, OSError):
        return None
    return CLUSTER_MODE if is_cluster else None
