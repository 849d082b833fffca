"""How the two systems are asked, without servers."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from bench.handoff import systems
from bench.handoff.client import Stream

if TYPE_CHECKING:
    from baton_serve.core.net.client.http_client import HttpClient


def test_what_p_takes_counts_in_a_whole_answer_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_s: list[float] = []
    bodies: list[dict[str, Any]] = []

    async def ask(_http: HttpClient, _url: str, body: dict[str, Any]) -> dict[str, Any]:
        asked_s.append(time.perf_counter())
        bodies.append(body)
        return {"kv_transfer_params": {"remote_block_ids": [1]}}

    async def stream(_http: HttpClient, _url: str, body: dict[str, Any]) -> Stream:
        bodies.append(body)
        return Stream(time.perf_counter(), [time.perf_counter()], "text")

    monkeypatch.setattr(systems, "ask", ask)
    monkeypatch.setattr(systems, "stream", stream)
    servers: Any = SimpleNamespace(processes={name: SimpleNamespace(url=name) for name in "pd"})
    http: Any = None
    answered = asyncio.run(systems.Vllm(servers, "0").answer(http, [5], 4))
    assert answered.sent_s <= asked_s[0]
    assert [body["max_tokens"] for body in bodies] == [1, 4]
    assert bodies[1]["kv_transfer_params"] == {"remote_block_ids": [1]}
