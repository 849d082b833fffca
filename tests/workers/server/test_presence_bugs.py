"""The registry entry stays fresh although a bug comes between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.core.registry import announcer as announcers
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.registry.memory_registry import MemoryRegistry
from baton_serve.workers.server.presence import presence
from tests.kits.patience import PATIENCE_S
from tests.kits.registry import worker

if TYPE_CHECKING:
    import pytest


RECORD = worker("w").record


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

    announcer = presence(MemoryRegistry(WORKERS), RECORD, load, interval_ms=10, ttl_ms=60_000)
    await announcer.start()
    async with asyncio.timeout(PATIENCE_S):
        await again.wait()
    await announcer.stop()
    assert [record.exc_info is not None for record in caplog.records] == [True]
