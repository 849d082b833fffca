"""The registry entry."""

from __future__ import annotations

import asyncio

from baton_serve.core.protocol.worker import WorkerLoad, WorkerStatus
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.registry.memory_registry import MemoryRegistry
from baton_serve.core.registry.store import RegistryError
from baton_serve.workers.server.presence import presence
from tests.kits.registry import snapshot, worker

RECORD = worker("w").record


class Watched(MemoryRegistry[WorkerStatus]):
    """Counts announcements and can be silent."""

    def __init__(self) -> None:
        super().__init__(WORKERS)
        self.silent = False
        self.loads: asyncio.Queue[WorkerLoad] = asyncio.Queue()

    async def announce(self, status: WorkerStatus, ttl_ms: int) -> None:
        self.loads.put_nowait(status.load)
        if self.silent:
            raise RegistryError("silent")
        await super().announce(status, ttl_ms)


async def test_an_entry_is_there_once_started_and_gone_once_stopped() -> None:
    registry = Watched()
    announcer = presence(registry, RECORD, WorkerLoad, interval_ms=60_000, ttl_ms=60_000)
    await announcer.start()
    assert [status.record for status in await snapshot(registry)] == [RECORD]
    await announcer.stop()
    assert await snapshot(registry) == []


async def test_a_change_is_announced_without_waiting_for_the_interval() -> None:
    registry = Watched()
    load = WorkerLoad()
    announcer = presence(registry, RECORD, lambda: load, interval_ms=3_600_000, ttl_ms=60_000)
    await announcer.start()
    assert await registry.loads.get() == load
    load = WorkerLoad(running=3)
    announcer.changed()
    assert await registry.loads.get() == load
    await announcer.stop()


async def test_what_it_announces_last_is_how_it_is_when_it_stops() -> None:
    registry = Watched()
    load = WorkerLoad()
    announcer = presence(registry, RECORD, lambda: load, interval_ms=3_600_000, ttl_ms=60_000)
    await announcer.start()
    left: list[WorkerStatus] = []
    registry.on_withdrawn.append(left.append)
    load = WorkerLoad(draining=True)
    await announcer.stop()
    assert [status.load.draining for status in left] == [True]


async def test_a_silent_registry_is_tried_again() -> None:
    registry = Watched()
    registry.silent = True
    announcer = presence(registry, RECORD, WorkerLoad, interval_ms=1, ttl_ms=60_000)
    await announcer.start()
    await registry.loads.get()
    await registry.loads.get()
    registry.silent = False
    while not await snapshot(registry):
        await registry.loads.get()
    await announcer.stop()
