"""Where one request ends and the next begins, and what is refused between them."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from baton_serve.core.net.served.config import HeadLimits, PortConfig
from baton_serve.core.net.served.connection import MAX_PIPELINED
from baton_serve.core.net.served.notices import BAD_REQUEST
from tests.kits.patience import eventually
from tests.kits.port import GET, HEAD, Served, serving

CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"

BAD = {
    "no host": b"GET /echo HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /echo HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "the same host twice": b"GET /echo HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n",
    "a host with a space": b"GET /echo HTTP/1.1\r\nhost: a b\r\n\r\n",
    "a host with a path": b"GET /echo HTTP/1.1\r\nhost: a/b\r\n\r\n",
    "a host with a user": b"GET /echo HTTP/1.1\r\nhost: u@a\r\n\r\n",
    "old, with two hosts": b"GET /echo HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n",
    "no http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a url that is none": b"GET echo HTTP/1.1\r\nhost: a\r\n\r\n",
    "connect": b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n",
    "HTTP/2 in words": b"GET /echo HTTP/2.0\r\nhost: x\r\n\r\n",
    "HTTP/0.9": b"GET /echo HTTP/0.9\r\nhost: x\r\n\r\n",
    "two keys": HEAD + b"content-length: 0\r\nauthorization: a\r\nx: y\r\nAuthorization: a\r\n\r\n",
    "two keys of another kind": HEAD + b"content-length: 0\r\nx-api-key: a\r\nX-Api-Key: b\r\n\r\n",
    "two lengths": HEAD + b"content-length: 1\r\ncontent-length: 1\r\n\r\n",
    "a length and chunks": HEAD + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    "a chunk without a size": CHUNKED + b"x\r\n",
}


@pytest.mark.parametrize("sent", BAD.values(), ids=BAD)
async def test_a_malformed_request_gets_an_error_in_our_shape_and_is_disconnected(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as served:
        for _ in range(3):
            caller, answer = await served.ask(sent)
            assert (answer.status, answer.headers["connection"]) == (400, "close")
            assert answer.code in ("invalid_http", "invalid_host")
            await caller.closed()
        assert served.port.connections.notices.counts == {BAD_REQUEST: 3}
    said = [record.getMessage() for record in caplog.records if record.name == "baton.net"]
    assert said == [f"port: {BAD_REQUEST}: 1", f"port: {BAD_REQUEST}: 2"], "the second line is of the port's end"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("host", [b"", b"127.0.0.1:8000", b"[::1]:8000", b"router.example", b"a_b:1"])
async def test_every_valid_host_header_is_served(host: bytes, served: Served) -> None:
    _, answer = await served.ask(b"GET /echo HTTP/1.1\r\nhost: " + host + b"\r\n\r\n")
    assert answer.status == 200


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t "])
async def test_white_space_around_a_value_means_nothing(space: bytes, served: Served) -> None:
    lines = (b"host:%bx%b", b"content-length:%b4%b", b"authorization:%bBearer k%b")
    head = b"".join(line % (space, space) + b"\r\n" for line in lines)
    _, answer = await served.ask(b"POST /echo HTTP/1.1\r\n" + head + b"\r\nabcd")
    assert (answer.status, answer.body) == (200, b"4")
    assert served.app.scopes[0]["headers"] == [
        (b"host", b"x"),
        (b"content-length", b"4"),
        (b"authorization", b"Bearer k"),
    ]
    _, answer = await served.ask(HEAD + b"transfer-encoding: chunked \r\n\r\n1\r\nx\r\n0\r\n\r\n")
    assert (answer.status, answer.body) == (200, b"5")


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"gzip,chunked", b"identity"])
async def test_a_body_in_another_coding_is_refused_by_the_name_of_the_header(coding: bytes, served: Served) -> None:
    caller, answer = await served.ask(HEAD + b"transfer-encoding: " + coding + b"\r\n\r\n0\r\n\r\n")
    assert (answer.status, answer.code) == (501, "unsupported_transfer_encoding")
    assert json.loads(answer.body)["error"]["param"] == "transfer-encoding"
    await caller.closed()
    assert served.app.scopes == []


async def test_a_method_that_is_not_known_is_named(served: Served) -> None:
    caller, answer = await served.ask(b"FOO /echo HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (answer.status, answer.code) == (501, "unsupported_method")
    assert "'FOO'" in json.loads(answer.body)["error"]["message"]
    await caller.closed()


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_a_target_without_a_path_means_the_root(method: bytes, served: Served) -> None:
    _, answer = await served.ask(method + b" http://x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
    (scope,) = served.app.scopes
    assert (answer.status, scope["path"], scope["raw_path"]) == (200, "/", b"/")


async def test_an_application_is_told_that_its_client_left_also_if_more_requests_follow(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as served:
        caller = await served.send(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n" + CHUNKED + b"0\r\n\r\n")
        await served.app.until_asked(1)
        caller.writer.transport.abort()
        tasks = served.port.served.tasks
        await asyncio.wait(tasks)
    assert (len(served.app.scopes), len(served.app.calls)) == (1, 0), "the second one never began"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("bad", [b"ZZ\r\n", b"1\r\nx\r\nZZ\r\n", b"1;" + b"x" * 300_000], ids=["first", "next", "size"])
@pytest.mark.parametrize("num_before", [1, 3])
async def test_requests_before_a_malformed_body_still_have_their_answers(bad: bytes, num_before: int) -> None:
    held = HEAD.replace(b"/echo", b"/held") + b"content-length: 1\r\n\r\nx"
    async with serving(SMALL) as served:
        caller = await served.send(held * num_before)
        await served.app.until_asked(1)
        await caller.send(CHUNKED + bad)
        await asyncio.sleep(0.05)
        served.app.go_on.set()
        answers = [await caller.answer() for _ in range(num_before)]
        assert [answer.status for answer in answers] == [200] * num_before
        assert [answer.headers.get("connection") for answer in answers] == [*[None] * (num_before - 1), "close"]
        await caller.closed()


async def test_answers_come_in_the_order_of_the_requests(served: Served) -> None:
    caller = await served.connect()
    for number in range(1, 4):
        await caller.send(HEAD + b"content-length: 1\r\n\r\nx")
        assert (await caller.answer()).body == b"%d" % number
    await caller.send((HEAD + b"content-length: 1\r\n\r\nx") * MAX_PIPELINED)
    for number in range(4, 4 + MAX_PIPELINED):
        assert (await caller.answer()).body == b"%d" % number


async def test_no_client_gets_far_ahead_of_its_answers(served: Served) -> None:
    caller = await served.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n" + GET * 10_000)
    await served.app.until_asked(1)
    served.app.go_on.set()
    answers = [await caller.answer() for _ in range(MAX_PIPELINED + 1)]
    assert [answer.status for answer in answers] == [200] * (MAX_PIPELINED + 1)
    assert answers[-1].headers["connection"] == "close"
    await caller.closed()


async def test_garbage_behind_a_request_does_not_get_into_its_answer(served: Served) -> None:
    caller = await served.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
    await served.app.until_asked(1)
    await caller.send(b"\x00\x01garbage\r\n\r\n")
    await eventually(lambda: BAD_REQUEST in served.port.connections.notices.counts)
    served.app.go_on.set()
    answer = await caller.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    await caller.closed()


SMALL = PortConfig(keep_alive_s=60, head=HeadLimits(max_bytes=4096))


@pytest.mark.parametrize("step", [1 << 20, 700])
@pytest.mark.parametrize("what", ["the size of a chunk", "lines after the last chunk"])
async def test_sizes_of_chunks_and_lines_after_the_last_one_are_bounded(step: int, what: str) -> None:
    async with serving(SMALL) as served:
        caller = await served.send(CHUNKED + b"1\r\nx\r\n")
        endless = (b"1;" if what == "the size of a chunk" else b"0\r\na: ") + b"x" * 300_000
        for start in range(0, 8192, step):
            caller.writer.write(endless[start : start + step])
        answer = await caller.answer()
        assert answer.status in (400, 431)
        await caller.closed()


async def test_chunks_of_one_byte_are_a_body() -> None:
    async with serving(SMALL) as served:
        _, answer = await served.ask(CHUNKED + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")
        assert (answer.status, answer.body) == (200, b"5000")


async def test_asgi_is_told_of_both_addresses(served: Served) -> None:
    caller, _ = await served.ask(GET)
    await caller.send(GET)
    assert (await caller.answer()).status == 200
    sock = caller.writer.get_extra_info("socket")
    assert [(scope["client"], scope["server"]) for scope in served.app.scopes] == [
        (sock.getsockname(), sock.getpeername())
    ] * 2
