"""The two stores that a worker shares with routers: leases and the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.leases.memory_store import MemoryLeaseStore
from core.leases.redis_store import RedisLeaseStore
from core.protocol.token_keys import announcement_key
from core.registry.announcement import WORKERS
from core.registry.memory_registry import MemoryRegistry
from core.registry.redis_registry import RedisRegistry

if TYPE_CHECKING:
    from core.leases.store import LeaseStore
    from core.protocol.worker import WorkerStatus
    from core.registry.store import Registry
    from workers.settings import WorkerSettings


@dataclass(frozen=True)
class WorkerStores:
    """The lease store and the registry of workers."""

    leases: LeaseStore
    registry: Registry[WorkerStatus]

    async def close(self) -> None:
        """Close all connections. Safe to call twice."""
        await self.registry.close()
        self.leases.close()


def connect(settings: WorkerSettings) -> WorkerStores:
    """Stores in Redis, which connect at the first call; with an empty URL, stores in memory that no router sees.

    Raises ValueError for a URL that the Redis client does not accept.
    """
    url = settings.redis_login
    if not url:
        return WorkerStores(MemoryLeaseStore(), MemoryRegistry(WORKERS))
    token = settings.internal_token
    key = None if token is None else announcement_key(token.get_secret_value())
    return WorkerStores(RedisLeaseStore(url), RedisRegistry(url, WORKERS, key=key))
