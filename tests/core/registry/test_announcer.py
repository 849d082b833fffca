"""The registry entry, which stays fresh although a bug comes between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from baton_serve.core.protocol.worker import WorkerLoad, WorkerStatus
from baton_serve.core.registry import announcer as announcers
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.registry.announcer import Announcer
from baton_serve.core.registry.memory_registry import MemoryRegistry
from baton_serve.core.registry.store import RegistryError
from tests.kits.patience import PATIENCE_S
from tests.kits.registry import snapshot, worker

RECORD = worker("w").record


def presence(
    registry: MemoryRegistry[WorkerStatus], load: Callable[[], WorkerLoad], interval_ms: int
) -> Announcer[WorkerStatus]:
    """A worker's announcer."""

    def entry() -> WorkerStatus:
        return WorkerStatus(record=RECORD, load=load())

    return Announcer(registry, "w", entry, interval_ms=interval_ms, ttl_ms=60_000, who="worker")


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
    announcer = presence(registry, WorkerLoad, 60_000)
    await announcer.start()
    assert [status.record for status in await snapshot(registry)] == [RECORD]
    await announcer.stop()
    assert await snapshot(registry) == []


async def test_a_change_is_announced_without_waiting_for_the_interval() -> None:
    registry = Watched()
    load = WorkerLoad()
    announcer = presence(registry, lambda: load, 3_600_000)
    await announcer.start()
    assert await registry.loads.get() == load
    load = WorkerLoad(running=3)
    announcer.changed()
    assert await registry.loads.get() == load
    await announcer.stop()


async def test_what_it_announces_last_is_how_it_is_when_it_stops() -> None:
    registry = Watched()
    load = WorkerLoad()
    announcer = presence(registry, lambda: load, 3_600_000)
    await announcer.start()
    left: list[WorkerStatus] = []
    registry.on_withdrawn.append(left.append)
    load = WorkerLoad(draining=True)
    await announcer.stop()
    assert [status.load.draining for status in left] == [True]


async def test_a_silent_registry_is_tried_again() -> None:
    registry = Watched()
    registry.silent = True
    announcer = presence(registry, WorkerLoad, 1)
    await announcer.start()
    await registry.loads.get()
    await registry.loads.get()
    registry.silent = False
    while not await snapshot(registry):
        await registry.loads.get()
    await announcer.stop()


async def test_a_bug_does_not_end_the_announcements(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(announcers, "RESTART_S", 0.01)
    asked: list[WorkerLoad] = []
    again = asyncio.Event()

    def load() -> WorkerLoad:
        asked.append(WorkerLoad(running=len(asked)))
        if len(asked) == 2:
            raise KeyError("bug")
        if len(asked) == 4:
            again.set()
        return asked[-1]

    announcer = presence(MemoryRegistry(WORKERS), load, 10)
    await announcer.start()
    async with asyncio.timeout(PATIENCE_S):
        await again.wait()
    await announcer.stop()
    assert [record.exc_info is not None for record in caplog.records] == [True]
