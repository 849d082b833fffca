"""The client of the benchmarks: what it notes of a stream, and what it says of answers that are none."""

from __future__ import annotations

import pytest

from bench.client import AnswerError, Client, Stream
from tests.kits.answering import serves

STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"text": "%b"}]}\n\n'
END = b"data: [DONE]\n\n"


def chunks(*pieces: bytes) -> tuple[bytes, ...]:
    return STREAM, *(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"


def whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def test_every_piece_of_text_has_its_time() -> None:
    cut = EVENT % b"b"
    async with serves(*chunks(EVENT % b"a", EVENT % b"", cut[:9], cut[9:] + END)) as url, Client() as client:
        stream = await client.stream(url, {})
    assert (stream.text, stream.complete) == ("ab", True)
    assert len(stream.pieces_s) == 2
    assert stream.sent_s <= stream.pieces_s[0] <= stream.pieces_s[1] <= stream.ended_s
    assert stream.until_s(0) >= 0
    assert len(stream.gaps_s(0)) == 1


async def test_a_client_that_has_seen_enough_leaves() -> None:
    stream = Stream()
    async with serves(STREAM, *chunks(EVENT % b"a" + EVENT % b"b")[1:2]) as url, Client() as client:
        await client.read(url, {}, stream, stop_after=1)
    assert (stream.text, stream.complete) == ("a", False)


async def test_an_answer_is_read() -> None:
    async with serves(whole(b'{"usage": 1}')) as url, Client() as client:
        assert await client.ask(url, {"prompt": [1]}) == {"usage": 1}


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (chunks(EVENT % b"a"), "without its end mark"),
        (chunks(b'data: {"error": "oh"}\n\n', END), "an error in a stream: oh"),
        (chunks(b"data: no json\n\n"), "no event: "),
        ((whole(b"busy", b"503 No"),), "answers 503 b'busy'"),
        ((b"nonsense\r\n\r\n",), "http://127.0.0.1"),
    ],
)
async def test_what_is_no_answer_is_an_error_of_one_line(answer: tuple[bytes, ...], complaint: str) -> None:
    async with serves(*answer) as url, Client() as client:
        with pytest.raises(AnswerError, match=complaint) as raised:
            await client.stream(url, {})
    assert "\n" not in str(raised.value)


async def test_a_server_that_says_nothing_is_waited_for_as_long_as_was_said() -> None:
    async with serves() as url, Client(timeout_s=0.05) as client:
        with pytest.raises(AnswerError, match="did not answer"):
            await client.ask(url, {})
