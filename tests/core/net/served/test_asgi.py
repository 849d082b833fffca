"""What applications send over ASGI is an answer in HTTP, or the client is told that there is none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kits.port import serving

TEXT = (b"content-type", b"text/plain")


def start(status: int, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def said(*messages: dict[str, Any] | BaseException, method: bytes = b"GET") -> bytes:
    """All that a client reads of an answer that has these messages, or an exception between them."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        for message in messages:
            if isinstance(message, BaseException):
                raise message
            await send(message)

    async with serving(other_app=app) as served:
        caller = await served.send(method + b" / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        return await caller.reader.read()


@pytest.mark.parametrize("length", [None, b"5"])
async def test_an_answer_to_head_has_no_body(length: bytes | None) -> None:
    headers = () if length is None else ((b"Content-Length", length),)
    answer = await said(start(200, *headers), body(b"hello"), method=b"HEAD")
    shown = b"" if length is None else b"content-length: 5\r\n"
    assert answer == b"HTTP/1.1 200 OK\r\n" + shown + b"connection: close\r\n\r\n"


@pytest.mark.parametrize("data", [b"", b"hello"])
@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_no_chunks(status: int, data: bytes) -> None:
    answer = await said(start(status), body(data))
    assert answer.startswith(b"HTTP/1.1 %d " % status) and answer.endswith(b"\r\nconnection: close\r\n\r\n")


async def test_a_status_without_a_name_is_passed_on() -> None:
    assert (await said(start(299, (b"content-length", b"1")), body(b"a"))).startswith(b"HTTP/1.1 299 \r\n")


async def test_the_header_that_announces_chunks_is_written_once() -> None:
    answer = await said(start(200, (b"Transfer-Encoding", b"chunked")), body(b"a"))
    assert answer.partition(b"\r\n\r\n") == (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close",
        b"\r\n\r\n",
        b"1\r\na\r\n0\r\n\r\n",
    )


async def test_the_application_may_close_the_connection() -> None:
    answer = await said(start(200, (b"Connection", b"close"), (b"content-length", b"1")), body(b"a"))
    assert answer == b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\na"


WRONG: dict[str, tuple[dict[str, Any] | BaseException, ...]] = {
    "a bug": (KeyError("a bug"),),
    "a wait that was cancelled": (asyncio.CancelledError(),),
    "no answer": (),
    "a body first": (body(b"a"),),
    "a line break in a value": (start(200, (b"x", b"a\r\nset-cookie: b")), body(b"")),
    "a space in a name": (start(200, (b"x y", b"a")), body(b"")),
    "a length that is none": (start(200, (b"content-length", b"many")), body(b"")),
    "a negative length": (start(200, (b"content-length", b"-5")), body(b"")),
    "a status before the answer": (start(100), body(b"")),
}


@pytest.mark.parametrize("messages", WRONG.values(), ids=WRONG)
async def test_an_application_that_gives_no_answer_is_a_500(
    messages: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    answer = await said(*messages)
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n") and b"set-cookie" not in answer
    assert [record.levelname for record in caplog.records] == ["ERROR"]


CUT: dict[str, tuple[dict[str, Any] | Exception, ...]] = {
    "a bug": (body(b"ab", more=True), KeyError("a bug")),
    "no end": (body(b"ab", more=True),),
    "too short": (body(b"ab"),),
    "too long": (body(b"ab", more=True), body(b"cdef")),
    "two starts": (body(b"ab", more=True), start(200)),
}


@pytest.mark.parametrize("messages", CUT.values(), ids=CUT)
async def test_an_answer_that_is_not_complete_is_cut_off(
    messages: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    answer = await said(start(200, TEXT, (b"content-length", b"4")), *messages)
    assert answer.partition(b"\r\n\r\n")[2] in (b"", b"ab"), "shorter than it says"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    if messages[0].get("more_body"):
        stream = await said(start(200, TEXT), *(one for one in messages if one != body(b"cdef")))
        assert not stream.endswith(b"0\r\n\r\n"), "the last chunk says that all has come"


async def test_data_behind_the_end_of_an_answer_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    answer = await said(start(200, (b"content-length", b"2")), body(b"ab"), body(b"c"))
    assert answer.endswith(b"\r\n\r\nab")
    assert "wrong time" in caplog.text
