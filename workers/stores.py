"""The two stores a worker shares with routers."""

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
class Stores:
    """Where leases and worker records live."""

    leases: LeaseStore
    registry: Registry[WorkerStatus]

    async def close(self) -> None:
        """Give back connections. Safe to call twice."""
        await self.registry.close()
        self.leases.close()


def connect(settings: WorkerSettings) -> Stores:
    """Redis, connected to when first needed; with an empty URL nothing is shared, and no router sees the worker.

    Raises ValueError for a URL that the Redis client does not take.
    """
    url = settings.redis_login
    if not url:
        return Stores(MemoryLeaseStore(), MemoryRegistry(WORKERS))
    token = settings.internal_token
    key = None if token is None else announcement_key(token.get_secret_value())
    return Stores(RedisLeaseStore(url), RedisRegistry(url, WORKERS, key=key))
