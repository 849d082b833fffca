"""What a router asks P itself about leases: to release them, and which of them it holds."""

from __future__ import annotations

import pytest

from baton_serve.core.protocol.leases_at_p import HELD_PATH, MAX_BYTES, MAX_LEASES, RELEASE_PATH
from tests.kits.worker.front import completion, front

ASK = {"kv_transfer_params": {"do_remote_decode": True}, "max_tokens": 1}
BOTH = pytest.mark.parametrize("path", [RELEASE_PATH, HELD_PATH])


async def test_leases_end_and_what_is_not_held_is_not_counted() -> None:
    async with front() as worker:
        for _ in range(3):
            assert (await worker.http.post("/v1/completions", json=completion(**ASK))).status_code == 200
        answer = await worker.internal.post(RELEASE_PATH, json={"lease_ids": ["lease-0", "lease-2", "never", "a b"]})
        assert (answer.status_code, answer.json()) == (200, {"released": 2})
        assert worker.leases.dropped == ["lease-0", "lease-2"] and list(worker.engine.held) == ["lease-1"]
        again = await worker.internal.post(RELEASE_PATH, json={"lease_ids": ["lease-0", "lease-2"]})
        assert again.json() == {"released": 0}


async def test_what_is_held_is_said_and_stays() -> None:
    async with front() as worker:
        for _ in range(2):
            assert (await worker.http.post("/v1/completions", json=completion(**ASK))).status_code == 200
        for _ in range(2):
            answer = await worker.internal.post(HELD_PATH, json={"lease_ids": ["lease-1", "never", "a b"]})
            assert (answer.status_code, answer.json()) == (200, {"held": ["lease-1"]})
        assert worker.leases.dropped == [] and list(worker.engine.held) == ["lease-0", "lease-1"]


async def test_as_many_as_a_router_names_in_one_call_fit() -> None:
    async with front() as worker:
        answer = await worker.internal.post(RELEASE_PATH, json={"lease_ids": ["x" * 128] * MAX_LEASES})
        assert (answer.status_code, answer.json()) == (200, {"released": 0})


@BOTH
@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"lease_ids": "a"}', b'{"lease_ids": [1]}', b"\xff", b'{"x":' + b"[" * 50_000]
)
async def test_what_names_no_leases_is_refused(path: str, body: bytes) -> None:
    async with front() as worker:
        answer = await worker.internal.post(path, content=body)
        assert answer.status_code == 400
        assert "does not name leases" in answer.json()["error"]["message"]


@BOTH
async def test_more_than_a_router_sends_is_refused(path: str) -> None:
    async with front() as worker:
        answer = await worker.internal.post(path, content=b" " * (MAX_BYTES + 1))
        assert answer.status_code == 413
        answer = await worker.internal.post(path, json={"lease_ids": ["x"] * (MAX_LEASES + 1)})
        assert answer.status_code == 413
