"""A router is dead: the worker ends everything that only this router would have ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kits.worker.front import Front, completion, front

DEAD, ALIVE = "0123456789ab", "ba9876543210"
ASK = {"kv_transfer_params": {"do_remote_decode": True}, "max_tokens": 1}


async def ask(worker: Front, router_id: str, number: int, **more: Any) -> Any:
    headers = {"x-request-id": f"{number:020x}{router_id}"}
    return await worker.http.post("/v1/completions", json=completion(**more), headers=headers)


async def gone(worker: Front, router_id: str) -> Any:
    response = await worker.internal.post(f"/internal/routers/{router_id}/gone")
    assert response.status_code == 200, response.text
    return response.json()


async def test_its_leases_are_dropped_and_nobody_elses() -> None:
    async with front() as worker:
        for router_id, number in ((DEAD, 1), (ALIVE, 2), (DEAD, 3)):
            assert (await ask(worker, router_id, number, **ASK)).status_code == 200
        assert await gone(worker, DEAD) == {"aborted": 0, "leases": 2}
        assert worker.leases.dropped == ["lease-0", "lease-2"] and list(worker.engine.held) == ["lease-1"]
        assert await gone(worker, DEAD) == {"aborted": 0, "leases": 0}


async def test_its_sequences_end_and_nobody_elses() -> None:
    async with front() as worker:
        worker.engine.gate = asyncio.Semaphore(0)
        asked = [asyncio.create_task(ask(worker, router_id, 7)) for router_id in (DEAD, ALIVE)]
        while len(worker.engine.running) < 2:
            worker.engine.changed.clear()
            await worker.engine.changed.wait()
        assert await gone(worker, DEAD) == {"aborted": 1, "leases": 0}
        response = await asked[0]
        assert (response.status_code, response.json()["error"]["code"]) == (499, "aborted")
        for _ in worker.engine.script:
            worker.engine.gate.release()
        assert (await asked[1]).status_code == 200
        assert worker.engine.aborted == [f"{7:020x}{DEAD}"]


@pytest.mark.parametrize(
    "router_id", ["0123456789a", "0123456789abc", "0123456789AB", "0123456789ag", "0123456789ab%0A", "%20123456789ab"]
)
async def test_what_is_no_router_id_ends_nothing(router_id: str) -> None:
    async with front() as worker:
        assert (await ask(worker, DEAD, 1, **ASK)).status_code == 200
        response = await worker.internal.post(f"/internal/routers/{router_id}/gone")
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_value")
        assert worker.leases.dropped == []
