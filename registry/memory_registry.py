"""The registry in this process: for tests, and for a router whose workers are named on its command line."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from registry.announcement import check_worker_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from protocol.worker import WorkerStatus


def monotonic_ms() -> int:
    """This process's monotonic clock in ms."""
    return time.monotonic_ns() // 1_000_000


class MemoryRegistry:
    """A ``Registry`` of one event loop. ``clock`` gives ms; who injects one calls ``tick`` after moving it."""

    def __init__(self, clock: Callable[[], int] = monotonic_ms) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[WorkerStatus, int]] = {}
        self._changed = asyncio.Condition()
        self._version = 0

    async def announce(self, status: WorkerStatus, ttl_ms: int) -> None:
        check_worker_id(status.record.worker_id)
        self._entries[status.record.worker_id] = (status, self._clock() + ttl_ms)
        await self.tick()

    async def withdraw(self, worker_id: str) -> None:
        if self._entries.pop(check_worker_id(worker_id), None) is not None:
            await self.tick()

    async def snapshot(self) -> list[WorkerStatus]:
        return self._alive()

    async def watch(self) -> AsyncIterator[list[WorkerStatus]]:
        told: list[WorkerStatus] | None = None
        while True:
            seen = self._version
            alive = self._alive()
            if alive != told:
                told = alive
                yield alive
            await self._wait(seen)

    async def tick(self) -> None:
        """Make watchers look again."""
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    async def close(self) -> None:
        """Nothing to give back."""

    def _alive(self) -> list[WorkerStatus]:
        now_ms = self._clock()
        self._entries = {key: entry for key, entry in self._entries.items() if entry[1] > now_ms}
        return [self._entries[key][0] for key in sorted(self._entries)]

    async def _wait(self, seen: int) -> None:
        """Until somebody announced or withdrew since ``seen``, or the earliest entry ran out."""
        earliest_ms = min((until_ms for _, until_ms in self._entries.values()), default=None)
        timeout_s = None if earliest_ms is None else max(0, earliest_ms - self._clock()) / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._version != seen)
