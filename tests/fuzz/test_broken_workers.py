"""A router in front of workers whose HTTP and whose event streams are broken in any way: it takes a bounded number of
bytes, the client is told, and the next request is served."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.net.client.connection import MAX_HEAD_BYTES
from baton_serve.router.upstream.events import MAX_EVENT_BYTES
from tests.kits.fuzz.broken_worker import (
    CHUNKED,
    GOOD,
    GOOD_EVENTS,
    HEAD,
    PIECE_BYTES,
    SOCKETS_BYTES,
    Broken,
    chunk,
    event,
)
from tests.kits.fuzz.profile import fuzz, mutated

ENDLESS_BYTES = 1 << 30
UNTIL_CLOSE = HEAD + b"\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broken() -> AsyncIterator[Broken]:
    async with Broken() as made:
        yield made


@fuzz(60)
@given(answer=mutated(GOOD), stream=st.booleans())
async def test_an_answer_with_changed_bytes(broken: Broken, answer: bytes, stream: bool) -> None:
    await broken.answered(answer, stream=stream)


PIECES = st.sampled_from(
    [
        event(),
        event("\ufffd"),
        b"data: [DONE]\n\n",
        b":\n",
        b":1,2\n",
        b":-5,,9999999999999999999999,x\n",
        b":end\n",
        b":end\n:end\n",
        b":" + b"9," * 1000 + b"\n",
        b"data: \xff\xfe\n\n",
        b"data: " + event(),
        b'data: {"error": []}\n\n',
        b'data: {"error": {"message": "x", "code": 700}}\n\n',
        b'data: {"error": ' + b"[" * 1500 + b"]" * 1500 + b"}\n\n",
        b"data: {}\n\n",
        b"data:\n\n",
        b"\n\n",
        b"\r\n\r\n",
        b"event: x\nid: 5\nretry: 1\n",
        b"\x00\n\n",
        b"data: " + b"x" * 1000,
    ]
)


@fuzz(80)
@given(pieces=st.lists(PIECES, max_size=8), chunked=st.booleans())
async def test_a_stream_of_odd_events(broken: Broken, pieces: list[bytes], chunked: bool) -> None:
    if chunked:
        await broken.answered(CHUNKED + b"".join(map(chunk, filter(None, pieces))) + b"0\r\n\r\n", stream=True)
    else:
        await broken.answered(UNTIL_CLOSE + b"".join(pieces), stream=True)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00",
        b"HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 600 Odd\r\ncontent-length: 25\r\n\r\n" + b'{"error":{"message":"x"}}',
        b"HTTP/1.1 099 Odd\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10,
        b"HTTP/1.1 204 None\r\n\r\n",
        b"HTTP/1.1 304 Not\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nretry-after: " + b"9" * 400 + b'\r\ncontent-length: 25\r\n\r\n{"error":{"message":"x"}}',
        b"HTTP/1.1 503 Busy\r\nretry-after: -1\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"ffffffffffffffffffff\r\nx\r\n",
        CHUNKED + chunk(event()) + b"-1\r\n",
        HEAD + b"content-length: -5\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n123456",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"content-length: 99999999999999999999999\r\n\r\n",
        GOOD + GOOD,
        GOOD + b"\x00" * 100,
        CHUNKED + chunk(GOOD_EVENTS + event("after the end")) + b"0\r\n\r\n",
        CHUNKED + chunk(GOOD_EVENTS.replace(b"\n", b"\r\n")) + b"0\r\n\r\n",
    ],
    ids=range(25),
)
async def test_an_answer_that_is_none(broken: Broken, answer: bytes, stream: bool) -> None:
    await broken.answered(answer, stream=stream)


def endless(piece: bytes) -> Callable[[], Iterator[bytes]]:
    """A GB of it, made while it is sent."""
    whole = piece * (PIECE_BYTES // len(piece))
    return lambda: itertools.repeat(whole, ENDLESS_BYTES // len(whole))


@pytest.mark.parametrize(
    ("answer", "piece"),
    [
        (b"HTTP/1.1 200 ", b"x"),
        (b"HTTP/1.1 200 OK\r\nx: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (UNTIL_CLOSE + b"data: ", b"x"),
        (UNTIL_CLOSE + event() + event() + b"data: ", b"x"),
        (UNTIL_CLOSE + event() + event() + b":", b"1,"),
        (UNTIL_CLOSE, b":\n"),
        (UNTIL_CLOSE, b"data: x\n"),
        (CHUNKED + b"5;", b"x"),
        (CHUNKED + chunk(event() + event()) + b"0\r\nx: ", b"x"),
        (CHUNKED + chunk(event() + event()) + b"0\r\n", b"x: y\r\n"),
        (b"HTTP/1.1 500 No\r\n\r\n", b"x"),
    ],
    ids=["reason", "header", "headers", "interim", "event", "second", "ids", "comments", "lines", *"etmb"],
)
async def test_a_gigabyte_that_is_not_taken(broken: Broken, answer: bytes, piece: bytes) -> None:
    assert max(MAX_HEAD_BYTES, MAX_EVENT_BYTES) < SOCKETS_BYTES
    await broken.answered(answer, endless(piece), stream=True)


async def test_a_gigabyte_of_unstreamed_answer(broken: Broken) -> None:
    await broken.answered(UNTIL_CLOSE, endless(b"x"), stream=False)
