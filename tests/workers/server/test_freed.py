"""However a request ends on a worker, nothing of it is left to the garbage collector: neither its body nor its job."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from baton_serve.core.protocol.openai.requests import ChatRequest, CompletionRequest
from baton_serve.workers.engine.api import EngineError, EngineRequest, TokenStream
from baton_serve.workers.server.access import TRUST_HEADER
from baton_serve.workers.server.answers.job import Job
from baton_serve.workers.server.calls import Asked, _Request
from baton_serve.workers.server.client import Client
from baton_serve.workers.settings import WorkerSettings
from tests.kits.router.cluster import eventually
from tests.kits.survivors import Survivors, without_collector
from tests.kits.worker.front import Front, chat, completion, front
from tests.kits.worker.hand_off import ASK

KINDS = (Job, EngineRequest, TokenStream, ChatRequest, CompletionRequest, Asked, Client, _Request)
TRUST = TRUST_HEADER.decode()
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
#: What is answered whole, streamed and handed over.
EVERY: list[tuple[str, dict[str, Any]]] = [
    (CHAT, chat()),
    (CHAT, chat(stream=True)),
    (COMPLETION, completion()),
    (COMPLETION, completion(stream=True)),
    (CHAT, chat(**ASK)),
    (COMPLETION, completion(**ASK)),
]


def kinds_of(kind: type[EngineError]) -> list[type[EngineError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in kinds_of(child))]


@pytest.fixture
async def worker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Front]:
    monkeypatch.setattr(WorkerSettings, "body_timeout_s", 0.1)
    async with front(max_body_bytes=4096, token="secret") as made:
        made.http.headers[TRUST] = "secret"
        yield made


async def check(worker: Front, survivors: Survivors) -> None:
    """Nothing is left; the kit itself keeps what its engine was asked."""
    worker.engine.requests.clear()
    worker.engine._streams.clear()
    await eventually(lambda: not worker.engine.running)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not survivors.count()


async def test_an_engine_that_fails(worker: Front) -> None:
    with without_collector(KINDS) as survivors:
        for kind in kinds_of(EngineError):
            for worker.engine.error_after in (0, 2):
                for path, body in EVERY:
                    worker.engine.error = kind("it fails")
                    await worker.http.post(path, json=body)
        worker.engine.error = None
        await check(worker, survivors)


async def test_what_ends_well(worker: Front) -> None:
    with without_collector(KINDS) as survivors:
        for path, body in EVERY:
            assert (await worker.http.post(path, json=body)).status_code == 200
        worker.engine.forget_leases()
        await check(worker, survivors)


async def test_what_is_refused(worker: Front) -> None:
    long = "x y " * 600
    bodies: list[dict[str, Any]] = [
        {"json": {"model": "other", "prompt": "a", "messages": []}},
        {"json": chat(long)},
        {"json": completion(long)},
        {"json": completion(stream=1)},
        {"json": {**completion(), "kv_transfer_params": {"do_remote_prefill": 3}}},
        {"content": b"{"},
        {"content": b" " * 5000},
        {"json": completion(), "headers": {TRUST: "wrong"}},
    ]
    with without_collector(KINDS) as survivors:
        for path in (CHAT, COMPLETION, "/tokenize", "/detokenize"):
            for sent in bodies:
                assert (await worker.http.post(path, **sent)).status_code >= 400
        worker.engine.draining = True
        for path, body in EVERY:
            assert (await worker.http.post(path, json=body)).status_code == 503
        await check(worker, survivors)


@pytest.mark.parametrize("how", ["leaves", "is aborted"])
async def test_a_request_that_is_ended(worker: Front, how: str) -> None:
    with without_collector(KINDS) as survivors:
        for path, body in EVERY:
            worker.engine.gate = asyncio.Semaphore(0 if "kv_transfer_params" in body else 1)
            reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
            raw = json.dumps(body).encode()
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\n{TRUST}: secret\r\ncontent-length: {len(raw)}\r\n\r\n"
            writer.write(head.encode() + raw)
            await worker.engine.until_running()
            if how == "leaves":
                writer.close()
            else:
                worker.engine.abort_all("")
                assert await reader.readline()
                writer.close()
            await eventually(lambda: not worker.engine.running)
        await check(worker, survivors)


async def test_bodies_that_do_not_come_whole(worker: Front) -> None:
    with without_collector(KINDS) as survivors:
        for leaves in (True, False):
            reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{TRUST}: secret\r\ncontent-length: 300\r\n\r\n"
            writer.write(head.encode() + b"{")
            if leaves:
                writer.write_eof()
                assert not await reader.read()  # the worker has closed
            else:
                assert b" 408 " in await reader.readline()
            writer.close()
        await eventually(lambda: not survivors.count())
        await check(worker, survivors)


@pytest.mark.parametrize("error", [MemoryError(), KeyError("a bug")], ids=["no memory", "bug"])
async def test_what_is_nobodys_fault(worker: Front, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise error

    # The test's handlers would keep the frames of what is logged.
    monkeypatch.setattr(logging.getLogger("baton_serve.workers.server.calls"), "propagate", False)
    monkeypatch.setattr("baton_serve.workers.server.answers.serving.parse_body", fails)
    with without_collector(KINDS) as survivors:
        answer = await worker.http.post(CHAT, json=chat())
        await check(worker, survivors)
    code = "out_of_memory" if isinstance(error, MemoryError) else "internal_error"
    assert (answer.status_code, answer.json()["error"]["code"]) == (503 if code == "out_of_memory" else 500, code)
