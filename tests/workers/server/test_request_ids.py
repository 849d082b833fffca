"""Which requests are one and the same: those that a router calls so, not those that clients do."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.core.protocol.request_ids import new_request_id, new_router_id
from tests.kits.worker.front import completion, front
from tests.kits.worker.hand_off import ASK, GOOD


@pytest.mark.parametrize("name", ["1", "cmpl-0123", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "AB" * 16, "ab" * 17])
async def test_requests_that_clients_call_the_same_do_not_replace_each_other(name: str) -> None:
    named = {"x-request-id": name}
    async with front() as worker:
        alone = (await worker.http.post("/v1/completions", json=completion(seed=1))).json()
        worker.engine.gate = asyncio.Semaphore(0)
        asked = [
            asyncio.create_task(worker.http.post("/v1/completions", json=completion(seed=1), headers=named))
            for _ in range(2)
        ]
        while len(worker.engine.running) < 2:
            worker.engine.changed.clear()
            await worker.engine.changed.wait()
        assert name not in worker.engine.running
        for _ in range(2 * len(worker.engine.script)):
            worker.engine.gate.release()
        for answer in await asyncio.gather(*asked):
            assert (answer.status_code, answer.headers["x-request-id"]) == (200, name)
            assert (answer.json()["id"], answer.json()["choices"]) == (f"cmpl-{name}", alone["choices"])


async def test_hand_offs_that_clients_call_the_same_are_both_read() -> None:
    """Callers of other routers name both legs alike; D finds the lease by its own id."""
    named = {"x-request-id": "cmpl-1"}
    async with front() as worker:
        found = [
            (await worker.http.post("/v1/completions", json=completion(**ASK), headers=named)).json() for _ in range(2)
        ]
        leases = {one["kv_transfer_params"]["lease_id"]: one["kv_transfer_params"] for one in found}
        assert {key: params["remote_request_id"] for key, params in leases.items()} == worker.engine.held
        for body in found:
            more = {"kv_transfer_params": {**GOOD, **body["kv_transfer_params"], "remote_engine_id": "another"}}
            answer = await worker.http.post("/v1/completions", json=completion(**more), headers=named)
            assert answer.status_code == 200, answer.text
        assert len(worker.engine.leases) == 2 and worker.leases.dropped == []
        worker.engine.forget_leases()


async def test_a_routers_own_id_is_the_engines() -> None:
    """By it a router aborts, asks again, and is given up with all that it has."""
    router_id = new_router_id()
    request_id = new_request_id(router_id)
    async with front() as worker:
        await worker.http.post("/v1/completions", json=completion(**ASK), headers={"x-request-id": request_id})
        assert worker.engine.held == {"lease-0": request_id}
        worker.engine.gate = asyncio.Semaphore(0)
        asked = worker.http.post("/v1/completions", json=completion(), headers={"x-request-id": request_id})
        running = asyncio.create_task(asked)
        await worker.engine.until_running()
        assert list(worker.engine.running) == [request_id]
        assert (await worker.internal.post(f"/internal/abort/{request_id}")).json() == {"aborted": True}
        assert (await running).status_code == 499
