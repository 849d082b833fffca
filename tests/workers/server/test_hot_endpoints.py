"""Where a request goes: to a hot endpoint, or to the framework."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.worker.front import completion, front
from workers.server.hot_endpoints import HotEndpoints


@pytest.mark.parametrize(
    ("kind", "method", "path", "goes"),
    [
        ("http", "POST", "/hot", "hot"),
        ("http", "GET", "/hot", "rest"),
        ("http", "POST", "/hot/", "rest"),
        ("http", "POST", "/", "rest"),
        ("websocket", "POST", "/hot", "rest"),
        ("lifespan", None, None, "rest"),
    ],
)
async def test_only_a_post_to_its_very_path_goes_to_an_endpoint(kind: str, method: Any, path: Any, goes: str) -> None:
    seen: list[str] = []

    async def hot(*_: Any) -> None:
        seen.append("hot")

    async def rest(*_: Any) -> None:
        seen.append("rest")

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    scope = {"type": kind} if method is None else {"type": kind, "method": method, "path": path}
    await HotEndpoints({"/hot": hot}, rest)(scope, nothing, nothing)
    assert seen == [goes]


async def test_no_framework_wraps_what_a_hot_endpoint_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its middleware would be called for every token."""
    from fastapi import FastAPI

    called: list[str] = []
    of_framework = FastAPI.__call__

    async def noted(self: FastAPI, scope: Any, receive: Any, send: Any) -> None:
        called.append(scope.get("path", ""))
        await of_framework(self, scope, receive, send)

    monkeypatch.setattr(FastAPI, "__call__", noted)
    async with front() as worker:
        assert (await worker.http.post("/v1/completions", json=completion())).status_code == 200
        assert (await worker.http.get("/v1/models")).status_code == 200
        assert called == ["/v1/models"]
