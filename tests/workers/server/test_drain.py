"""Draining from outside, and back: the internal port, the pages, the engine itself."""

from __future__ import annotations

import asyncio

from baton_serve.workers.server.pages.internal import LeavingError
from tests.kits.worker.front import completion, front


async def test_a_drained_worker_refuses_until_it_is_resumed() -> None:
    async with front() as worker:
        for _ in range(2):
            assert (await worker.internal.post("/internal/drain")).json() == {"draining": True}
        refused = await worker.http.post("/v1/completions", json=completion(max_tokens=2))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert (await worker.http.get("/health")).status_code == 503
        for _ in range(2):
            assert (await worker.internal.post("/internal/resume")).json() == {"draining": False}
        assert (await worker.http.post("/v1/completions", json=completion(max_tokens=2))).status_code == 200
        assert (await worker.http.get("/health")).status_code == 200


async def test_what_runs_goes_on_while_it_drains() -> None:
    async with front() as worker:
        worker.engine.gate = asyncio.Semaphore(0)
        running = asyncio.create_task(worker.http.post("/v1/completions", json=completion(max_tokens=2)))
        await worker.engine.until_running()
        await worker.internal.post("/internal/drain")
        worker.engine.gate.release()
        worker.engine.gate.release()
        assert (await running).status_code == 200


async def test_a_worker_that_leaves_is_not_resumed() -> None:
    async with front() as worker:
        worker.engine.draining = worker.engine.leaving = True
        answer = await worker.internal.post("/internal/resume")
        assert (answer.status_code, answer.json()["error"]["code"]) == (LeavingError.status, "worker_leaving")
        assert worker.engine.draining
