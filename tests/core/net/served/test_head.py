"""The head of a request is bounded before the parser keeps it: in bytes and in lines, however it is cut."""

from __future__ import annotations

import pytest

from baton_serve.core.net.served.config import HeadLimits, PortConfig
from tests.kits.port import GET, HEAD, serving

LIMITS = HeadLimits(max_bytes=4096, max_lines=20)
SMALL = PortConfig(keep_alive_s=60, head=LIMITS)

TOO_LARGE = {
    "one long value": b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"x" * 5000 + b"\r\n\r\n",
    "one long name": b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x" * 5000 + b": a\r\n\r\n",
    "a long url": b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "many lines": b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a:\r\n" * 30 + b"\r\n",
    "blank lines": b"\r\n" * 3000 + GET,
    "many short lines that never end": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
    "a line that never ends": b"GET / HTTP/1.1\r\na: " + b"x" * 100_000,
}


@pytest.mark.parametrize("sent", TOO_LARGE.values(), ids=TOO_LARGE)
@pytest.mark.parametrize("step", [1 << 30, 1000, 7])
async def test_a_head_that_is_too_large_is_refused_and_the_connection_closes(sent: bytes, step: int) -> None:
    async with serving(SMALL) as served:
        caller = await served.connect()
        for start in range(0, min(len(sent), 8192), step):
            caller.writer.write(sent[start : start + step])
        answer = await caller.answer()
        assert (answer.status, answer.code) == (431, "request_head_too_large")
        assert answer.headers["connection"] == "close"
        await caller.closed()
        assert served.app.scopes == []


async def test_a_head_as_large_as_is_allowed_is_served() -> None:
    lines = b"".join(b"a%02d: b\r\n" % number for number in range(18))
    rest = b"\r\n\r\n"
    room = LIMITS.max_bytes - len(b"GET /echo HTTP/1.1\r\nhost: x\r\nlong: " + rest)
    async with serving(SMALL) as served:
        for sent in (
            b"GET /echo HTTP/1.1\r\nhost: x\r\n" + lines + b"\r\n",
            b"GET /echo HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * room + rest,
        ):
            _, answer = await served.ask(sent)
            assert answer.status == 200


async def test_a_body_does_not_count_as_part_of_the_head() -> None:
    body = b"x" * 100_000
    async with serving(SMALL) as served:
        caller, answer = await served.ask(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert (answer.status, answer.body) == (200, b"100000")
        await caller.send(GET)
        assert (await caller.answer()).status == 200, "and the next head counts anew"


async def test_heads_of_one_connection_do_not_add_up() -> None:
    long = b"GET /echo HTTP/1.1\r\nhost: x\r\na: " + b"x" * 3000 + b"\r\n\r\n"
    async with serving(SMALL) as served:
        caller = await served.send(long * 3)
        for _ in range(3):
            assert (await caller.answer()).status == 200


async def test_lines_after_a_body_are_bounded_and_no_headers() -> None:
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    async with serving(SMALL) as served:
        _, answer = await served.ask(chunked + b"authorization: a\r\n\r\n")
        assert answer.status == 200
        assert [name for name, _ in served.app.scopes[0]["headers"]] == [b"host", b"transfer-encoding"]
        caller = await served.send(chunked + b"a: b\r\n" * 30)
        assert (await caller.answer()).status == 431
