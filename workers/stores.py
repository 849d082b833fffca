"""The two stores a worker shares with routers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leases.memory_store import MemoryLeaseStore
from leases.redis_store import RedisLeaseStore
from registry.announcement import WORKERS
from registry.memory_registry import MemoryRegistry
from registry.redis_registry import RedisRegistry

if TYPE_CHECKING:
    from leases.store import LeaseStore
    from protocol.worker import WorkerStatus
    from registry.store import Registry


@dataclass(frozen=True)
class Stores:
    """Where leases and worker records live."""

    leases: LeaseStore
    registry: Registry[WorkerStatus]

    async def close(self) -> None:
        """Give back connections. Safe to call twice."""
        await self.registry.close()
        self.leases.close()


def connect(redis_url: str) -> Stores:
    """Redis, connected to when first needed; with an empty URL nothing is shared, and no router sees the worker."""
    if not redis_url:
        return Stores(MemoryLeaseStore(), MemoryRegistry(WORKERS))
    return Stores(RedisLeaseStore(redis_url), RedisRegistry(redis_url, WORKERS))
