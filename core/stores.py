"""Where leases and the records of workers and routers live: in Redis, or in this process alone.

Clients of Redis connect when they are first used, so that a process can start while Redis is unreachable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.leases.memory_store import MemoryLeaseStore
from baton_serve.core.protocol.token_keys import announcement_key
from baton_serve.core.redis_client import cluster_complaint
from baton_serve.core.registry.memory_registry import MemoryRegistry
from baton_serve.core.registry.redis_registry import RedisRegistry

if TYPE_CHECKING:
    from baton_serve.core.leases.store import LeaseStore
    from baton_serve.core.process.settings import ProcessSettings
    from baton_serve.core.registry.announcement import Kind
    from baton_serve.core.registry.store import Registry

EntryT = TypeVar("EntryT")


def lease_store(settings: ProcessSettings) -> LeaseStore:
    """The store of leases; without ``redis_url`` no other process sees it.

    Raises ValueError for a URL that the Redis client does not accept. The message may repeat the URL.
    """
    url = settings.redis_login
    return RedisLeaseStore(url) if url else MemoryLeaseStore()


def complaint(settings: ProcessSettings) -> str | None:
    """Why this Redis cannot be used, in one sentence; None if it can, or cannot be asked now. Blocks for a second."""
    url = settings.redis_login
    return cluster_complaint(url) if url else None


def registry(settings: ProcessSettings, kind: Kind[EntryT]) -> Registry[EntryT]:
    """The registry of one kind of process; without ``redis_url`` no other process sees it.

    With an internal token it signs what it writes and skips what is not signed. Raises ValueError as ``lease_store``.
    """
    url, token = settings.redis_login, settings.internal_token
    if not url:
        return MemoryRegistry(kind)
    key = None if token is None else announcement_key(token.get_secret_value())
    return RedisRegistry(url, kind, key=key)
