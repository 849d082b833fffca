"""Whom the internal port answers, and what it says of the worker and of remote engines."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest
from fastapi import FastAPI

from baton_serve.workers.handshake.peer_view import PeerEngineState, PeerView
from baton_serve.workers.server.pages.internal import list_peers
from tests.kits.worker.front import SECRET, front


@pytest.mark.parametrize(
    "path",
    ["drain", "resume", "abort/x", "leases/release", "leases/held", "routers/0123456789ab/gone", "state"],
)
async def test_every_page_asks_for_the_internal_token(path: str) -> None:
    async with front(token=SECRET) as worker:
        asked = "GET" if path == "state" else "POST", f"/internal/{path}"
        for token, status in ((None, 401), ("wrong", 401), (SECRET, 200)):
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            answer = await worker.internal.request(*asked, headers=headers, json={"lease_ids": []})
            assert answer.status_code == status
            assert status == 200 or answer.json()["error"]["code"] == "invalid_internal_token"
            assert worker.engine.draining == (path == "drain" and status == 200)
        assert (await worker.http.request(*asked)).status_code == 404


async def test_the_state_of_a_worker_that_has_met_nobody() -> None:
    async with front() as worker:
        state = (await worker.internal.get("/internal/state")).json()
    assert (state["ledger"], state["peers"]) == ("ok", [])
    assert state["blocks"] == {"total": 10, "free": 10, "cached": 0, "pinned": 0, "leased": 0, "leases": 1}


async def test_tells_how_many_tasks_there_are() -> None:
    async with front() as worker:
        before = (await worker.internal.get("/internal/state")).json()["tasks"]
        more = [asyncio.create_task(asyncio.Event().wait()) for _ in range(3)]
        assert (await worker.internal.get("/internal/state")).json()["tasks"] == before + 3
        for task in more:
            task.cancel()


async def test_the_state_and_the_load_page_say_the_same() -> None:
    async with front() as worker:
        state = (await worker.internal.get("/internal/state")).json()
        assert state["load"] == (await worker.http.get("/load")).json()


async def test_the_worker_answers_while_its_blocks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting takes as long as there are blocks."""
    loop, begun, counted = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def count() -> None:
        loop.call_soon_threadsafe(begun.set)
        counted.wait()

    async with front() as worker:
        monkeypatch.setattr(worker.engine, "audit", lambda: count)
        asked = asyncio.create_task(worker.internal.get("/internal/state"))
        await begun.wait()
        assert (await worker.http.get("/load")).status_code == 200
        counted.set()
        assert (await asked).json()["ledger"] == "ok"


async def test_remote_engines_are_listed_with_everything_about_them() -> None:
    """Through JSON, as they are read."""
    failed = PeerView(
        state=PeerEngineState.FAILED, reason="timeout", error="timeout: waited", failure_age_s=1.5, reads=3, stuck=1
    )
    app = FastAPI()
    app.add_api_route("/", lambda: list_peers({"e1": PeerView(state=PeerEngineState.CONNECTED), "e2": failed}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as client:
        answer = (await client.get("/")).json()
    assert answer == [
        {
            "engine_id": "e1",
            "state": "connected",
            "reason": "",
            "error": "",
            "failure_age_s": None,
            "reads": 0,
            "stuck": 0,
            "refuses": False,
        },
        {
            "engine_id": "e2",
            "state": "failed",
            "reason": "timeout",
            "error": "timeout: waited",
            "failure_age_s": 1.5,
            "reads": 3,
            "stuck": 1,
            "refuses": True,
        },
    ]
