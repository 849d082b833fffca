"""Clients of HTTP/1.0 know no chunks: what is streamed to them ends with the connection."""

from __future__ import annotations

import pytest

from tests.kits.port import PARTS, Served

#: The last request of its connection, though its client says that it keeps that; and one that is no HTTP.
LAST = b"POST %b HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 4\r\n\r\nabcd"
BROKEN = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n"


async def test_a_stream_has_no_chunks_and_ends_with_the_connection(served: Served) -> None:
    caller = await served.send(b"POST /parts HTTP/1.0\r\ncontent-length: 4\r\n\r\nabcd")
    head, _, body = (await caller.reader.read()).partition(b"\r\n\r\n")
    assert body == b"".join(PARTS)
    assert b"transfer-encoding" not in head and b"content-length" not in head
    assert b"\r\nconnection: close" in head


async def test_a_stream_in_http_1_1_is_in_chunks(served: Served) -> None:
    caller = await served.send(b"POST /parts HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nabcd")
    head = await caller.reader.readuntil(b"\r\n\r\n")
    assert b"\r\ntransfer-encoding: chunked\r\n" in head
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in PARTS)
    assert await caller.reader.readuntil(b"\r\n0\r\n\r\n") == chunks + b"0\r\n\r\n"


async def test_an_answer_of_known_length_tells_its_length(served: Served) -> None:
    caller, answer = await served.ask(b"POST /echo HTTP/1.0\r\ncontent-length: 4\r\n\r\nabcd")
    assert (answer.body, answer.headers["connection"]) == (b"4", "close")
    await caller.closed()


async def test_old_clients_are_not_told_to_continue(served: Served) -> None:
    caller = await served.send(b"POST /echo HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n")
    await served.app.until_asked(1)
    await caller.send(b"abcd")
    answer = await caller.answer()
    assert (answer.status, answer.body) == (200, b"4")


async def test_a_long_stream_stops_when_the_client_leaves(served: Served) -> None:
    caller = await served.send(b"POST /long HTTP/1.0\r\ncontent-length: 4\r\n\r\nabcd")
    await caller.reader.readuntil(b"\r\n\r\n")
    assert await caller.reader.readexactly(1 << 17) == b"x" * (1 << 17)
    caller.writer.close()
    await served.port.connections.gone()


@pytest.mark.parametrize("path", [b"/echo", b"/held"])
@pytest.mark.parametrize("version", [b"1.0\r\nconnection: keep-alive", b"1.1\r\nhost: x\r\nconnection: close"])
async def test_requests_behind_a_last_request_never_begin(path: bytes, version: bytes, served: Served) -> None:
    caller = await served.connect()
    served.app.go_on.set()
    behind = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nabcd" % path
    await caller.send(b"POST %b HTTP/%b\r\ncontent-length: 4\r\n\r\nabcd" % (path, version) + behind * 2)
    assert (await caller.answer()).status == 200
    await caller.closed()
    assert len(served.app.scopes) == 1, "it would be done, and nobody would be told"


async def test_a_broken_body_behind_a_last_request_does_not_end_it(served: Served) -> None:
    caller = await served.send(LAST % b"/held" + BROKEN)
    await served.app.until_asked(1)
    served.app.go_on.set()
    assert (await caller.answer()).body == b"4"
    await caller.closed()
    assert not served.app.gone_calls


async def test_a_broken_body_behind_a_last_request_does_not_take_its_turn(served: Served) -> None:
    caller = await served.send(
        b"POST /held HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nabcd" + LAST % b"/echo" + BROKEN
    )
    await served.app.until_asked(1)
    served.app.go_on.set()
    assert [(await caller.answer()).status for _ in range(2)] == [200, 200]
    await caller.closed()


async def test_a_broken_body_behind_a_stream_does_not_get_into_it(served: Served) -> None:
    caller = await served.send(LAST % b"/long")
    await caller.reader.readuntil(b"\r\n\r\n")
    await caller.send(BROKEN)
    much = 1 << 25  # more than can be under way
    assert await caller.reader.readexactly(much) == b"x" * much
