"""The pool follows the registry, also after a bug somewhere between the two."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from baton_serve.core.protocol.worker import WorkerStatus
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.registry.memory_registry import MemoryRegistry
from baton_serve.router.pool import WorkerPool, discovery
from tests.kits.registry import LONG_MS, worker
from tests.kits.router.cluster import eventually


class Faulty(MemoryRegistry[WorkerStatus]):
    """Its watch breaks, or just ends, as often as it is told."""

    def __init__(self, *faults: Exception | None) -> None:
        super().__init__(WORKERS)
        self.faults = list(faults)

    async def watch(self) -> AsyncIterator[list[WorkerStatus]]:
        if self.faults:
            fault = self.faults.pop(0)
            if fault is None:
                return
            raise fault
        async for statuses in super().watch():
            yield statuses


class FaultyPool:
    """In front of a pool: the first list that it is given breaks it."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self.num_faults = 1

    def apply(self, statuses: Any) -> None:
        if self.num_faults:
            self.num_faults -= 1
            raise KeyError("bug in the pool")
        self._pool.apply(statuses)


async def test_discovery_goes_on_after_whatever_ended_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(discovery, "FIRST_PAUSE_S", 0.01)
    registry, pool = Faulty(RuntimeError("bug in the registry"), None), WorkerPool(1)
    faulty: Any = FaultyPool(pool)
    await registry.announce(worker("a"), LONG_MS)
    with caplog.at_level(logging.ERROR):
        task = asyncio.create_task(discovery.discover(registry, faulty))
        await eventually(lambda: [one.worker_id for one in pool] == ["a"])
        await registry.announce(worker("b"), LONG_MS)
        await eventually(lambda: [one.worker_id for one in pool] == ["a", "b"])
    assert [record.exc_info is not None for record in caplog.records] == [True, False, True]
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
