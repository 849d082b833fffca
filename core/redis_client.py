"""Makes clients of Redis, for threads or for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import redis
import redis.asyncio

if TYPE_CHECKING:
    from redis.retry import AbstractRetry

ClientT = TypeVar("ClientT", redis.Redis, redis.asyncio.Redis)


def connect(kind: type[ClientT], url: str, socket_timeout_s: float, retry: AbstractRetry[Any]) -> ClientT:
    """A client with its own pool. It speaks RESP2, which suffices here and which proxies in front of Redis understand.

    Raises ValueError for an invalid URL, and for an unknown option in it, which redis-py would only find on connecting.
    """
    client = kind.from_url(
        url,
        socket_timeout=socket_timeout_s,
        socket_connect_timeout=socket_timeout_s,
        retry=retry,
        protocol=2,
    )
    pool = client.connection_pool
    try:
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, redis.RedisError):
        raise ValueError("the URL of Redis has an option that does not exist") from None
    return client
