"""The registry entry, and leases that nobody would otherwise end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.protocol.openai.requests import CompletionRequest
from core.protocol.worker import WorkerLoad, WorkerStatus
from core.registry.announcement import WORKERS
from core.registry.memory_registry import MemoryRegistry
from core.registry.store import RegistryError
from tests.kits.registry import snapshot, worker
from tests.kits.worker.front import RecordingLeases, ScriptedEngine, completion, fast_tokenizer, render
from workers.engine.api import FinishReason, HandOff, TokenOutput
from workers.engine.token_stream import QueuedTokens
from workers.server.answers.job import JobFactory
from workers.server.answers.serving import Serving
from workers.server.http import ConnectedClient
from workers.server.identity import Identity
from workers.server.metrics import WorkerMetrics
from workers.server.presence import presence
from workers.text.tokenizer import Tokenizer

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


class OneStream(ScriptedEngine):
    """Hands out a stream that the test feeds."""

    def __init__(self) -> None:
        super().__init__([])
        self.stream = QueuedTokens(lambda: None)

    def submit(self, request: Any) -> QueuedTokens:
        self.changed.set()
        return self.stream


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_hand_off_in_the_turn_in_which_the_client_leaves_is_dropped(arrives: bool) -> None:
    engine = OneStream()
    leases = RecordingLeases(engine)
    identity = Identity(
        engine_id="e",
        root="/models/x",
        model="relay",
        created=1,
        weights="f",
        vocab_size=300,
        max_model_len=100,
        internal_host="127.0.0.1",
        internal_port=1,
    )
    tokenizer = Tokenizer(fast_tokenizer(), render, eos_token_ids=frozenset({1}), special_ids=frozenset({0, 1}))
    body = completion(kv_transfer_params={"do_remote_decode": True})
    job = await JobFactory(identity, tokenizer).make(CompletionRequest, body, "r")
    serving = Serving(engine, leases, identity, WorkerMetrics(engine.stats, dict), lambda: None)

    async def nothing(message: Any = None) -> Any:
        raise AssertionError("nothing is sent or received")

    task = asyncio.create_task(serving.answer(job, ConnectedClient(nothing, nothing, "r")))
    await engine.changed.wait()
    if arrives:
        engine.stream.put(TokenOutput(token=9, finish=FinishReason.LENGTH, hand_off=HandOff("lease-x", [1], [2])))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert leases.dropped == (["lease-x"] if arrives else [])
    tokenizer.close()
