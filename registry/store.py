"""The registry port. A worker announces itself several times a second; routers watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from protocol.worker import WorkerStatus


class RegistryError(Exception):
    """The registry could not be reached; callers keep what they knew."""


class Registry(Protocol):
    """Where workers are announced. Implementations: ``RedisRegistry``, ``MemoryRegistry``."""

    async def announce(self, status: WorkerStatus, ttl_ms: int) -> None:
        """Publish this worker's record and load; forgotten ``ttl_ms`` after the last announcement."""

    async def withdraw(self, worker_id: str) -> None:
        """Forget the worker now."""

    async def snapshot(self) -> list[WorkerStatus]:
        """All workers alive now."""

    def watch(self) -> AsyncIterator[list[WorkerStatus]]:
        """Yield the whole list at once, then again after every change; a worker whose ttl ran out counts as one.

        Survives a store that goes away and comes back: it yields nothing meanwhile and goes on afterwards.
        """

    async def close(self) -> None:
        """Give back connections."""
