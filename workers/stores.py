"""The two stores that a worker shares with routers: leases and the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.stores import lease_store, registry

if TYPE_CHECKING:
    from baton_serve.core.leases.store import LeaseStore
    from baton_serve.core.protocol.worker import WorkerStatus
    from baton_serve.core.registry.store import Registry
    from baton_serve.workers.settings import WorkerSettings


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
    """Stores in Redis, which connect at the first call; if the URL is empty, stores in memory that no router sees.

    Raises ValueError for a URL that the Redis client does not accept.
    """
    return WorkerStores(lease_store(settings), registry(settings, WORKERS))
