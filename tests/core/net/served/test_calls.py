"""Requests that are answered without ASGI: when they begin, what is told of their bodies, and beside others."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.patience import eventually
from tests.kits.port import HEAD, Served

pytestmark = pytest.mark.parametrize("kind", ["calls"], indirect=True)
BODY = HEAD + b"content-length: 4\r\n\r\n"
HELD = BODY.replace(b"/echo", b"/held")


@pytest.mark.parametrize("target", [b"/echo", b"/echo?a=b", b"/%65cho", b"http://x/echo", b"/echo#a"])
async def test_a_path_is_a_call_however_it_is_written(target: bytes, served: Served) -> None:
    _, answer = await served.ask(BODY.replace(b"/echo", target) + b"abcd")
    assert (answer.status, answer.body, [call.path for call in served.app.calls]) == (200, b"4", ["/echo"])


@pytest.mark.parametrize(
    "head", [BODY.replace(b"/echo", b"/echo/"), BODY.replace(b"/echo", b"/ECHO"), b"PUT" + BODY[4:]]
)
async def test_other_paths_and_methods_are_no_calls(head: bytes, served: Served) -> None:
    _, answer = await served.ask(head + b"abcd")
    assert (answer.status, answer.body, served.app.calls) == (200, b"4", [])


async def test_a_body_in_pieces_is_told_piece_by_piece(served: Served) -> None:
    caller = await served.send(BODY)
    await served.app.until_asked(1)
    (call,) = served.app.waited
    for number in range(1, 4):
        await caller.send(b"x")
        await eventually(lambda number=number: served.app.num_bytes == number)
        assert not call.whole
    await caller.send(b"x")
    assert (await caller.answer()).body == b"4"
    assert (call.body(), served.app.waited) == (b"xxxx", [call])


async def test_a_body_that_comes_with_its_head_is_not_waited_for(served: Served) -> None:
    await served.ask(BODY + b"abcd")
    (call,) = served.app.calls
    assert (call.body(), served.app.waited) == (b"abcd", [])


async def test_a_client_that_expects_100_continue_is_told_to_go_on(served: Served) -> None:
    caller = await served.send(BODY[:-2] + b"expect: 100-continue\r\n\r\n")
    assert await caller.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await caller.send(b"abcd")
    assert (await caller.answer()).body == b"4"


async def test_a_call_behind_another_begins_after_it_and_has_its_body_by_then(served: Served) -> None:
    caller = await served.send(HELD + b"abcd" + BODY + b"ef")
    await served.app.until_asked(1)
    assert len(served.app.calls) == 1
    served.app.go_on.set()
    assert (await caller.answer()).body == b"4"
    await served.app.until_asked(2)
    assert [call.num_bytes for call in served.app.waited] == [2]
    await caller.send(b"gh" + BODY + b"abcd")
    assert ((await caller.answer()).body, (await caller.answer()).body) == (b"8", b"12")


async def test_calls_and_asgi_requests_are_answered_in_order(served: Served) -> None:
    caller = await served.connect()
    get = b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n"
    await caller.send(HELD + b"abcd" + get + BODY + b"abcd" + get)
    await served.app.until_asked(1)
    served.app.go_on.set()
    assert [(await caller.answer()).body for _ in range(4)] == [b"4", b"4", b"8", b"8"]


@pytest.mark.parametrize("behind", [b"", BODY + b"abcd", b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n"])
async def test_a_call_is_told_that_its_client_left_also_if_more_requests_follow(behind: bytes, served: Served) -> None:
    caller = await served.send(HELD + b"abcd" + behind)
    await served.app.until_asked(1)
    caller.writer.close()
    await eventually(lambda: served.app.gone_calls)
    assert served.app.gone_calls == served.app.calls
    assert served.app.calls[0].disconnected


@pytest.mark.parametrize("body", [b"zz\r\n{", b"4\r\nabcdzz", b"4\r\nabcd\r\nzz\r\n"])
async def test_a_call_that_is_refused_for_its_body_ends_at_once(body: bytes, served: Served) -> None:
    """It has begun, since its head is looked at first; whoever was told of that is told of the end."""
    _, answer = await served.ask(HEAD + b"transfer-encoding: chunked\r\n\r\n" + body)
    assert (answer.status, len(served.app.calls)) == (400, 1)
    assert served.app.gone_calls == served.app.calls


async def test_a_call_that_is_refused_behind_another_one_never_begins(served: Served) -> None:
    caller = await served.send(HELD + b"abcd" + HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n{")
    await served.app.until_asked(1)
    served.app.go_on.set()
    await caller.reader.read()
    assert (len(served.app.calls), served.app.waited) == (1, [])


async def test_a_call_is_told_that_its_client_left_amid_the_body(served: Served) -> None:
    caller = await served.send(BODY + b"ab")
    await served.app.until_asked(1)
    caller.writer.close()
    await eventually(lambda: served.app.gone_calls)
    assert not served.app.gone_calls[0].whole


async def test_a_client_that_closes_after_its_answer_has_not_left(served: Served) -> None:
    caller, _ = await served.ask(BODY + b"abcd")
    caller.writer.close()
    await served.port.connections.gone()
    assert served.app.gone_calls == []


async def test_a_call_that_writes_is_told_when_its_client_does_not_read(served: Served) -> None:
    caller = await served.connect()
    caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await caller.send(BODY.replace(b"/echo", b"/long") + b"abcd")
    await eventually(lambda: served.app.num_drained)
    caller.writer.close()
    await eventually(lambda: served.app.gone_calls)


async def test_a_client_that_does_not_read_is_not_answered_on_and_on(served: Served) -> None:
    """Neither on one connection nor by requests that wait behind others; all are answered once it reads."""
    served.app.answer = b"x" * (1 << 20)
    caller = await served.connect()
    for number in range(200):
        await caller.send(BODY + b"abcd")
        if len(served.app.calls) <= number - 8:
            break
        await asyncio.sleep(0.002)
    num_answered = len(served.app.calls)
    await asyncio.sleep(0.05)
    assert len(served.app.calls) == num_answered < number
    for _ in range(number + 1):
        assert len((await caller.answer()).body) == 1 << 20
    served.app.answer = b""
    await caller.send(BODY + b"abcd")
    assert (await caller.answer()).status == 200
