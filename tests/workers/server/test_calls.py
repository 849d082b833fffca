"""Requests with a body, from their heads to their ends: whatever happens, nothing is kept of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from pydantic import SecretStr

from baton_serve.core.net.access.hosts import hosts_of
from baton_serve.core.net.served.body import BodyBudget, BodyReader
from baton_serve.core.protocol.errors import RateLimitError
from baton_serve.workers.server.access import Access
from baton_serve.workers.server.calls import Asked, WorkerCalls
from baton_serve.workers.server.client import Client
from tests.kits.worker.calls import FakeConnection
from tests.kits.worker.front import completion, front

MOST_BYTES = 40
JSON = b"content-type: application/json\r\n"


class Endpoint:
    """Does as the test says, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, str]] = []
        self.parts: list[bytes] = []
        self.error: Exception | None = None
        self.goes_on: asyncio.Event | None = None
        self.ended: list[str] = []

    async def answer(self, raw: bytes, client: Client, asked: Asked) -> None:
        self.asked.append((raw, asked.request_id))
        try:
            for part in self.parts:
                await client.send_part(part)
            if self.goes_on is not None:
                await self.goes_on.wait()
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("answered")
        if self.parts:
            client.send_last(b"last")
        else:
            client.send_json(200, b"{}")


class Served:
    """``WorkerCalls`` with one endpoint, and one connection to it."""

    def __init__(self, token: str | None = None, body_timeout_s: float = 60) -> None:
        self.endpoint = Endpoint()
        self.budget = BodyBudget(2 * MOST_BYTES)
        self.calls = WorkerCalls(
            {"/here": self.endpoint.answer},
            Access(None if token is None else SecretStr(token)),
            BodyReader(MOST_BYTES, self.budget),
            body_timeout_s,
            hosts_of("127.0.0.1", "127.0.0.1", []) if token is None else None,
        )
        self.connection = FakeConnection(self.calls)

    async def ends(self) -> bytes:
        """Everything that was sent, once nothing is left of any request."""
        await self.connection.until_idle()
        assert self.budget.used_bytes == 0
        assert not self.calls._requests
        assert not self.calls._waiting
        return self.connection.sent


LOCAL = {"host": "127.0.0.1"}


async def test_a_body_reaches_the_endpoint_of_its_path_once_it_is_whole() -> None:
    served = Served()
    call = served.connection.ask(None, x_request_id="ab", **LOCAL)
    await asyncio.sleep(0)
    assert not served.connection.tasks
    call.feed(b"}")
    call.keep_alive = True
    call.complete()
    sent = await served.ends()
    assert served.endpoint.asked == [(b"{}", "ab")]
    assert sent == b"HTTP/1.1 200 OK\r\n" + JSON + b"x-request-id: ab\r\ncontent-length: 2\r\n\r\n{}"
    assert served.connection.has_deadline


async def test_a_stream_has_its_head_with_its_first_part_even_if_that_is_empty() -> None:
    served = Served()
    served.endpoint.parts = [b"", b"one"]
    served.connection.ask(**LOCAL)
    head, _, chunks = (await served.ends()).partition(b"\r\n\r\n")
    assert b"text/event-stream" in head
    assert chunks == b"3\r\none\r\n4\r\nlast\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1", "content-length": "41"}, 413),
        ({"host": "127.0.0.1", "content-encoding": "gzip"}, 415),
        ({"host": "elsewhere"}, 403),
        ({"host": "127.0.0.1", "origin": "https://elsewhere", "sec-fetch-site": "cross-site"}, 403),
    ],
)
async def test_a_head_that_is_refused_is_answered_without_its_body(headers: dict[str, str], status: int) -> None:
    served = Served()
    call = served.connection.ask(None, **headers)
    assert call.response_complete
    assert (await served.ends()).startswith(b"HTTP/1.1 %d " % status)
    assert served.connection.transport.closed, "what is left of the body ends with the connection"
    assert not served.endpoint.asked


async def test_only_the_router_may_call_if_there_is_a_token() -> None:
    served = Served("secret")
    for given in ({}, {"x-baton-internal-token": "other"}, {"x-baton-internal-token": "secret"}):
        served.connection.ask(**given)
    assert (await served.ends()).count(b"HTTP/1.1 401 ") == 2
    assert len(served.endpoint.asked) == 1


async def test_bodies_are_bounded_each_and_together() -> None:
    served = Served()
    served.connection.ask(b"x" * (MOST_BYTES + 1), **LOCAL)
    assert (await served.ends()).startswith(b"HTTP/1.1 413 ")
    served.endpoint.goes_on = asyncio.Event()
    for _ in range(3):
        served.connection.ask(b"x" * MOST_BYTES, **LOCAL)
    assert served.budget.used_bytes == 2 * MOST_BYTES
    assert b"HTTP/1.1 429 " in served.connection.sent
    served.endpoint.goes_on.set()
    assert (await served.ends()).count(b"HTTP/1.1 200 ") == 2


async def test_a_body_that_does_not_come_is_given_up() -> None:
    served = Served(body_timeout_s=0.01)
    call = served.connection.ask(None, **LOCAL)
    while not call.response_complete:  # noqa: ASYNC110 (a timer of the loop)
        await asyncio.sleep(0.001)
    assert (await served.ends()).startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_leaves_while_its_body_comes_leaves_nothing() -> None:
    served = Served()
    served.connection.ask(None, **LOCAL).gone()
    assert await served.ends() == b""


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_client_that_leaves_ends_its_request(turns: int) -> None:
    """Also before the first step of the task that runs it."""
    served = Served()
    served.endpoint.goes_on = asyncio.Event()
    call = served.connection.ask(**LOCAL)
    for _ in range(turns):
        await asyncio.sleep(0)
    call.gone()
    assert await served.ends() == b""
    assert served.endpoint.ended == ([] if turns == 0 else ["cancelled"])


async def test_a_client_that_leaves_a_whole_answer_cancels_nothing() -> None:
    served = Served()
    call = served.connection.ask(**LOCAL)
    await asyncio.sleep(0)
    assert call.response_complete
    call.gone()
    await served.ends()
    assert served.endpoint.ended == ["answered"]


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_port_that_stops_cancels_what_runs_and_says_so(turns: int) -> None:
    served = Served()
    served.endpoint.goes_on = asyncio.Event()
    served.connection.ask(**LOCAL)
    (task,) = served.connection.tasks
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    sent = await served.ends()
    assert task.cancelled()
    assert (b"HTTP/1.1 503 " in sent and b"shutting down" in sent) == (turns > 0)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_failure_is_a_status_before_the_first_byte_and_an_event_after_it(begun: bool) -> None:
    served = Served()
    served.endpoint.error = RateLimitError("Not now.", retry_after_s=2.0)
    served.endpoint.parts = [b"one"] if begun else []
    served.connection.ask(**LOCAL)
    sent = await served.ends()
    assert sent.startswith(b"HTTP/1.1 200 " if begun else b"HTTP/1.1 429 ")
    assert (b"retry-after: 2\r\n" in sent) == (not begun)
    assert (b"data: {" in sent) == begun
    assert b"Not now." in sent
    assert sent.endswith(b"0\r\n\r\n") == begun


async def test_a_mistake_of_ours_is_answered_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    served = Served()
    served.endpoint.error = ValueError("the secret is 7")
    served.connection.ask(**LOCAL)
    sent = await served.ends()
    assert sent.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in sent
    assert "the secret is 7" in caplog.text


async def test_a_stream_waits_for_a_client_that_reads_slowly() -> None:
    served = Served()
    served.endpoint.parts = [b"one", b"two"]
    served.connection.flow.pause_writing()
    served.connection.ask(**LOCAL)
    for _ in range(5):
        await asyncio.sleep(0)
    assert b"one" in served.connection.sent
    assert b"two" not in served.connection.sent
    served.connection.flow.resume_writing()
    assert (await served.ends()).endswith(b"3\r\ntwo\r\n4\r\nlast\r\n0\r\n\r\n")


async def test_no_framework_sees_a_request_with_a_body_and_one_task_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi import FastAPI

    called: list[str] = []
    tasks: Counter[str] = Counter()
    of_framework = FastAPI.__call__
    loop = asyncio.get_running_loop()
    create_task = loop.create_task

    async def noted(self: FastAPI, scope: Any, receive: Any, send: Any) -> None:
        called.append(scope.get("path", ""))
        await of_framework(self, scope, receive, send)

    def counted(task: Any, **more: Any) -> asyncio.Task[Any]:
        module = task.cr_frame.f_globals["__name__"].removeprefix("baton_serve.")
        tasks["asgi" if module.endswith(".asgi") else module.partition(".")[0]] += 1
        return create_task(task, **more)

    monkeypatch.setattr(FastAPI, "__call__", noted)
    async with front() as worker:
        monkeypatch.setattr(loop, "create_task", counted)
        for path, body in (("/v1/completions", completion()), ("/tokenize", completion())):
            assert (await worker.http.post(path, json=body)).status_code == 200
        assert (tasks["workers"], tasks["asgi"], tasks["starlette"]) == (2, 0, 0)
        assert (await worker.http.get("/v1/models")).status_code == 200
        for path in ("/v1/completions", "/tokenize"):
            assert (await worker.http.get(path)).status_code == 405
        assert called == ["/v1/models", "/v1/completions", "/tokenize"]
