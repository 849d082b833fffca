"""Before a request begins: who may send what, how much of it, and for how long."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from baton_serve.core.net.served.body import Body, BodyBudget, BodyReader
from baton_serve.core.protocol.errors import (
    BadRequestError,
    BodyTimeoutError,
    PayloadTooLargeError,
    RateLimitError,
    UnavailableError,
)
from baton_serve.router.peers.listener import PeerFront
from tests.kits.port import Caller
from tests.kits.router.cluster import Cluster, chat, eventually

BODY = json.dumps(chat()).encode()
LIMIT = 1024


async def call(cluster: Cluster, path: str, length: int, *headers: str, sent: bytes = b"") -> Caller:
    caller = Caller(*await cluster.connect())
    about = ["host: localhost", "content-type: application/json", f"content-length: {length}"]
    caller.writer.write("\r\n".join([f"POST {path} HTTP/1.1", *about, *headers, "", ""]).encode() + sent)
    return caller


async def told(caller: Caller) -> tuple[int, str]:
    """Status and code of an error."""
    answer = await caller.answer()
    return answer.status, answer.code


async def half(cluster: Cluster, *headers: str) -> Caller:
    """A request of which half the body has been sent."""
    return await call(cluster, "/v1/chat/completions", len(BODY), *headers, sent=BODY[: len(BODY) // 2])


def finish(caller: Caller) -> None:
    caller.writer.write(BODY[len(BODY) // 2 :])


@pytest.mark.settings(admin_token="boss", max_body_bytes=LIMIT, body_timeout_s=30)
class TestAdmin:
    async def test_nothing_is_read_from_strangers(self, cluster: Cluster) -> None:
        caller = await call(cluster, "/admin/abort", LIMIT)
        assert await told(caller) == (401, "invalid_api_key")

    async def test_bodies_of_the_administrator_are_bounded_too(self, cluster: Cluster) -> None:
        caller = await call(cluster, "/admin/abort", LIMIT + 1, "authorization: Bearer boss")
        assert await told(caller) == (413, "request_too_large")

    async def test_a_body_without_an_announced_length_is_bounded_too(self, cluster: Cluster) -> None:
        async def many() -> Any:
            for _ in range(9):
                yield b" " * LIMIT

        response = await cluster.client.post("/admin/abort", content=many(), headers={"authorization": "Bearer boss"})
        assert response.status_code == 413

    async def test_a_small_body_arrives_whole(self, cluster: Cluster) -> None:
        caller = await call(cluster, "/admin/abort", 13, "authorization: Bearer boss", sent=b'{"all"')
        caller.writer.write(b": true}")
        answer = await caller.answer()
        assert (answer.status, json.loads(answer.body)) == (200, {"aborted": [], "unreachable_routers": []})


@pytest.mark.settings(api_keys=("sesame",), admin_token="boss")
class TestKeysThenTheRouteThenTheBody:
    """None of these bodies ever comes, and all answers do."""

    @pytest.mark.parametrize(
        ("path", "token", "status"),
        [
            ("/v1/chat/completions", "wrong", 401),
            ("/v1/nothing", "wrong", 401),
            ("/admin/abort", "sesame", 401),
            ("/admin/nothing", "wrong", 401),
            ("/v1/nothing", "sesame", 404),
            ("/admin/nothing", "boss", 404),
            ("/nothing", "wrong", 404),
            ("/v1/models", "sesame", 405),
            ("/health", "wrong", 405),
            ("/dashboard", "wrong", 405),
        ],
    )
    async def test_a_body_that_nobody_asked_for_is_not_read(
        self, cluster: Cluster, path: str, token: str, status: int
    ) -> None:
        for length in (LIMIT, 1 << 50):
            caller = await call(cluster, path, length, f"authorization: Bearer {token}", sent=b"{")
            assert (await caller.answer()).status == status
            assert await caller.reader.read() == b"", "and nothing more is taken"
        assert cluster.body_budget.used_bytes == 0

    async def test_a_get_has_no_body(self, cluster: Cluster) -> None:
        response = await cluster.client.request("GET", "/health", content=b"x" * 100)
        assert response.status_code == 200

    async def test_a_route_without_a_body_reads_none(self, cluster: Cluster) -> None:
        caller = await call(cluster, f"/admin/requests/{'0' * 32}/abort", LIMIT, "authorization: Bearer boss")
        assert (await caller.answer()).status == 404


@pytest.mark.settings(max_body_bytes=1024, max_bodies_bytes=1024)
class TestFewBytes:
    async def test_bytes_that_have_arrived_count_until_their_request_ends(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        budget = cluster.body_budget
        large = json.dumps({**chat(), "messages": [{"role": "user", "content": "u" * 600}]}).encode()
        slow = await call(cluster, "/v1/chat/completions", 1024, sent=large[:500])
        await eventually(lambda: budget.used_bytes == 500)
        assert (await cluster.client.post("/v1/chat/completions", content=BODY)).status_code == 200, "what fits"
        late = await call(cluster, "/v1/chat/completions", len(large), sent=large)
        refused = await late.answer()
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        late.writer.close()
        slow.writer.close()
        await eventually(lambda: budget.used_bytes == 0)
        hang = cluster.workers[0].hangs()
        running = await call(cluster, "/v1/chat/completions", len(large), sent=large)
        await eventually(lambda: budget.used_bytes == len(large))
        answer = await cluster.client.post("/v1/chat/completions", content=large)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        hang.release.set()
        assert (await running.answer()).status == 200
        await eventually(lambda: budget.used_bytes == 0)

    async def test_bytes_that_operators_send_count_too(self, cluster: Cluster) -> None:
        budget = cluster.body_budget
        slow = await call(cluster, "/admin/abort", 900, sent=b" " * 600)
        await eventually(lambda: budget.used_bytes == 600)
        late = await call(cluster, "/admin/abort", 600, sent=b" " * 600)
        refused = await late.answer()
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        for caller in (slow, late):
            caller.writer.close()
        await eventually(lambda: budget.used_bytes == 0)
        assert cluster.metrics.refused[429] == 1


@pytest.mark.settings(body_timeout_s=0.05)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/admin/abort"])
async def test_the_client_of_a_slow_body_is_told_and_disconnected(cluster: Cluster, path: str) -> None:
    caller = await call(cluster, path, 100, sent=b"{")
    assert await told(caller) == (408, "request_body_timeout")
    assert await caller.reader.read() == b""
    cluster.check_idle()
    assert cluster.metrics.refused[408] == 1


async def test_the_requests_own_deadline_counts_from_its_first_byte(cluster: Cluster) -> None:
    caller = await half(cluster, "x-request-timeout: 0.05")
    assert await told(caller) == (408, "request_body_timeout")


@pytest.mark.settings(max_requests=2)
class TestFewRequests:
    async def test_requests_that_are_still_coming_count(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        callers = [await half(cluster) for _ in range(2)]
        await eventually(lambda: cluster.front.calls.num_arriving == 2)
        assert (await cluster.post(chat())).status_code == 429
        for caller in callers:
            finish(caller)
            assert (await caller.answer()).status == 200
        cluster.check_idle()

    @pytest.mark.parametrize(("name", "status"), [("localhost", 400), ("elsewhere.example", 403)])
    async def test_requests_that_were_refused_for_their_chunks_do_not_count(
        self, cluster: Cluster, name: str, status: int
    ) -> None:
        await cluster.fleet("prefill", "decode")
        for _ in range(4):
            reader, writer = await cluster.connect()
            head = f"POST /v1/completions HTTP/1.1\r\nhost: {name}\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(head.encode() + b"zz\r\n{")
            assert (await reader.read()).startswith(b"HTTP/1.1 %d " % status)
        assert cluster.front.calls.num_arriving == 0
        assert (await cluster.post(chat())).status_code == 200
        cluster.check_idle()
        assert cluster.metrics.refused == ({403: 4} if status == 403 else {}), "its head was looked at, or not"


async def test_a_request_still_coming_at_sigterm_does_not_begin(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    caller = await half(cluster)
    await eventually(lambda: cluster.front.calls.num_arriving == 1)
    cluster.server.stop()
    assert await told(caller) == (503, "shutting_down")
    assert cluster.workers[0].bodies == []


@pytest.mark.interpreted
async def test_a_bug_is_answered_in_our_shape_and_logged(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> list[str]:
        raise KeyError("bug")

    monkeypatch.setattr(cluster.pool, "models", broken)
    with caplog.at_level(logging.ERROR):
        response = await cluster.client.get("/v1/models")
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is KeyError


# --- the reader alone


def parts(*data: bytes) -> Any:
    """A ``receive`` that gives these and then nothing."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in data]

    async def receive() -> Any:
        return messages.pop(0) if messages else await asyncio.Event().wait()

    return receive


def whole(data: bytes) -> Any:
    """A ``receive`` that gives this."""

    async def receive() -> Any:
        return {"type": "http.request", "body": data, "more_body": False}

    return receive


@pytest.fixture
def reader() -> BodyReader:
    return BodyReader(4, BodyBudget(6))


async def read(reader: BodyReader, receive: Any, timeout_s: float = 60, **headers: bytes) -> bytes:
    with Body(reader) as body:
        return await body.read(
            {name.replace("_", "-").encode(): text for name, text in headers.items()}, receive, timeout_s
        )


async def test_reading_ends_at_the_limit_in_time_and_on_close(reader: BodyReader) -> None:
    with pytest.raises(PayloadTooLargeError):
        await read(reader, parts(b"ab", b"cde"))
    with pytest.raises(BodyTimeoutError):
        await read(reader, parts(b"ab"), 0.01)
    reading = asyncio.create_task(read(reader, parts(b"ab")))
    await asyncio.sleep(0)
    assert (len(reader), reader.budget.used_bytes) == (1, 2)
    reader.close()
    with pytest.raises(UnavailableError):
        await reading
    assert (len(reader), reader.budget.used_bytes) == (0, 0)


async def test_a_cancelled_read_is_forgotten(reader: BodyReader) -> None:
    reading = asyncio.create_task(read(reader, parts(b"ab")))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (len(reader), reader.budget.used_bytes) == (0, 0)


async def test_all_bodies_count_together_against_the_limit(reader: BodyReader) -> None:
    with Body(reader) as first:
        assert await first.read({}, whole(b"abcd"), 60) == b"abcd"
        assert await read(reader, whole(b"ab")) == b"ab"
        with pytest.raises(RateLimitError):
            await read(reader, whole(b"abc"))
    assert await read(reader, whole(b"abc")) == b"abc"


@pytest.mark.parametrize("length", ["\u00b2", "-1", "1e3", "9" * 5000, "+1", " 1", ""])
async def test_a_malformed_content_length_is_refused(reader: BodyReader, length: str) -> None:
    """The HTTP parser refuses them first; whoever puts another one there finds them refused here."""
    with pytest.raises(BadRequestError):
        await read(reader, whole(b""), content_length=length.encode("latin-1"))


#: Of what a body may have few; then no JSON, of which a parser would complain.
CROWDS = {
    "messages": b'{"messages":[' + b'{"role":"user"},' * 3_000 + b"!",
    "keys": b'{"x":{' + b",".join(b'"%d":1' % i for i in range(5_000)) + b"!",
    "nesting": b'{"metadata":[' + b"[[[]]]," * 2_000 + b"!",
}


@pytest.mark.settings(max_messages=10, max_stop_strings=12)
class TestCrowdedBodies:
    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/admin/abort"])
    @pytest.mark.parametrize("crowd", CROWDS)
    async def test_nothing_of_a_crowded_body_is_built(self, cluster: Cluster, path: str, crowd: str) -> None:
        answer = await cluster.client.post(path, content=CROWDS[crowd], headers={"content-type": "application/json"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "array_above_max_length")
        assert error["message"].startswith("The JSON body of your request has more than 4")
        cluster.check_idle()

    async def test_too_many_messages_have_a_sentence_of_their_own(self, cluster: Cluster) -> None:
        worker = await cluster.add("both")
        for num_messages, status in ((11, 400), (10, 200)):
            answer = await cluster.post({**chat(), "messages": chat()["messages"] * num_messages})
            assert answer.status_code == status, answer.text
            assert status == 200 or answer.json()["error"]["message"] == "At most 10 messages are allowed."
        assert len(worker.bodies) == 1

    async def test_stop_strings_are_counted_in_every_dialect(self, cluster: Cluster) -> None:
        worker = await cluster.add("both")
        message = {"model": chat()["model"], "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
        for path, name, body in (("/v1/chat/completions", "stop", chat()), ("/v1/messages", "stop_sequences", message)):
            for num, status in ((13, 400), (12, 200)):
                answer = await cluster.client.post(path, json={**body, name: [f"<{i}>" for i in range(num)]})
                assert answer.status_code == status, answer.text
                assert status == 200 or name in answer.text
        assert len(worker.bodies) == 2

    @pytest.mark.parametrize("crowd", CROWDS)
    async def test_crowded_bodies_of_other_routers_are_refused_too(self, cluster: Cluster, crowd: str) -> None:
        app = cluster.internal()
        front = PeerFront(cluster.settings, cluster.peers.record, app, cluster.body_budget)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://localhost") as client:
            answer = await client.post("/internal/abort", content=CROWDS[crowd])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "array_above_max_length")
