"""Probes: as long as a worker is left out, it is asked whether it is there again."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.router.pool import WorkerPool
from baton_serve.router.pool import health as probes
from baton_serve.router.pool.health import HealthProbes
from tests.kits.router.cluster import eventually
from tests.kits.router.stub_workers import StubWorker


class Probed:
    """A pool with one worker, which is probed."""

    def __init__(self, stub: StubWorker) -> None:
        self.pool = WorkerPool(1)
        self.upstream = HttpClient(3.0)
        self.probes = HealthProbes(self.upstream, self.pool)
        self.stub = stub
        (self.worker,) = self.pool.add_static([], [stub.url])

    async def recovers(self) -> None:
        await eventually(lambda: self.worker.standing.healthy, "it is asked again, and answers")


@pytest_asyncio.fixture
async def probed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Probed]:
    monkeypatch.setattr(probes, "FIRST_PROBE_S", 0.001)
    stub = await StubWorker("decode").start()
    made = Probed(stub)
    await eventually(lambda: made.worker.models == ("m",))
    try:
        yield made
    finally:
        await made.probes.close()
        await made.upstream.close()
        await stub.stop()


async def test_a_worker_that_is_forgotten_meanwhile_does_not_answer_again(
    probed: Probed, caplog: pytest.LogCaptureFixture
) -> None:
    pool, worker = probed.pool, probed.worker
    await probed.stub.stop()
    pool.unreachable(worker)
    pool.remove_static(worker)
    await eventually(lambda: not probed.probes._tasks)
    assert not worker.standing.healthy and "answers again" not in caplog.text


async def test_a_worker_that_fails_again_in_the_turn_in_which_it_recovers_is_probed_again(probed: Probed) -> None:
    pool, worker = probed.pool, probed.worker
    failed_again: list[bool] = []

    def on_room() -> None:
        if worker.standing.healthy and not failed_again:
            pool.unreachable(worker)
            failed_again.append(not worker.standing.healthy)

    pool.unreachable(worker)
    pool.on_room.append(on_room)
    await eventually(lambda: failed_again == [True])
    await probed.recovers()


async def test_a_bug_in_a_probe_ends_no_probes(probed: Probed, caplog: pytest.LogCaptureFixture) -> None:
    class Buggy:
        async def request(self, *_: Any, **__: Any) -> Any:
            probed.probes._upstream = probed.upstream
            raise KeyError("a bug")

    probed.probes._upstream = Buggy()  # type: ignore[assignment]
    with caplog.at_level(logging.ERROR, "baton.router"):
        probed.pool.unreachable(probed.worker)
        await probed.recovers()
    assert "met a bug" in caplog.text
