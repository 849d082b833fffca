"""Calls whose heads were known go past the parser, and nobody sees a difference."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from baton_serve.core.net.known_head import KnownHead
from baton_serve.core.net.served.config import HeadLimits, PortConfig
from tests.kits.port import GET, HEAD, Caller, Served, all_said, serving

pytestmark = pytest.mark.parametrize("kind", ["calls"], indirect=True)
BODY = HEAD + b"content-length: 4\r\n\r\n"
HELD = BODY.replace(b"/echo", b"/held")
#: Heads that are sent before one is known, and one more.
NUM_BEFORE = 3


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """The heads that were known."""
    heads: list[bytes] = []
    real = KnownHead.end_in

    def end_in(known: KnownHead, data: bytes) -> int:
        end = real(known, data)
        if end:
            heads.append(data[:end])
        return end

    monkeypatch.setattr(KnownHead, "end_in", end_in)
    return heads


async def practised(served: Served, head: bytes, wanted: bytes = b"") -> Caller:
    """A connection on which ``head`` came before, each time with four bytes. ``wanted``: the answer to all."""
    caller = await served.connect()
    for number in range(NUM_BEFORE):
        await caller.send(head + b"abcd")
        assert (await caller.answer()).body == (wanted or b"%d" % (4 * number + 4))
    return caller


@pytest.mark.interpreted
async def test_heads_of_calls_are_known_from_the_third_on(found: list[bytes], served: Served) -> None:
    caller = await practised(served, BODY)
    assert found == [BODY]
    longer = BODY.replace(b": 4", b": 10")
    await caller.send(longer + b"0123456789")
    assert (await caller.answer()).body == b"22"
    assert found == [BODY, longer]
    first, *_, last = served.app.calls
    assert (last.path, last.body()) == ("/echo", b"0123456789")
    assert (first.headers[b"content-length"], last.headers) == (b"4", {b"host": b"x", b"content-length": b"10"})
    assert served.app.waited == []


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "head",
    [
        pytest.param(GET.replace(b"\r\n\r\n", b"\r\ncontent-length: 4\r\n\r\n"), id="not a call"),
        pytest.param(BODY.replace(b"content", b"expect: 100-continue\r\ncontent"), id="one that asks to go on"),
        pytest.param(BODY.replace(b"content", b"connection: upgrade\r\nupgrade: h2c\r\ncontent"), id="an offer"),
    ],
)
async def test_a_head_that_needs_the_parser_is_not_known(head: bytes, found: list[bytes], served: Served) -> None:
    caller = await served.connect()
    said = await all_said(caller, [head + b"abcd"] * (NUM_BEFORE + 1))
    assert (said.count(b"HTTP/1.1 200"), found) == (NUM_BEFORE + 1, [])


#: What comes after it: pieces of bytes.
TAILS = {
    "whole": [BODY + b"abcd"],
    "empty": [BODY.replace(b": 4", b": 0"), BODY + b"abcd"],
    "in two": [BODY, b"abcd"],
    "byte by byte": [bytes([byte]) for byte in BODY + b"abcd"],
    "body byte by byte": [BODY, b"a", b"b", b"c", b"d", BODY + b"abcd"],
    "two at once": [(BODY + b"abcd") * 2],
    "the next in the piece that ends it": [BODY + b"ab", b"cd" + BODY + b"efgh"],
    "the next begins in that piece": [BODY + b"ab", b"cd" + BODY[:9], BODY[9:] + b"efgh"],
    "an ASGI request in that piece": [BODY + b"ab", b"cd" + GET + BODY + b"efgh", GET],
    "garbage behind it": [BODY + b"abcdzz"],
    "garbage in a piece of its own": [BODY + b"abcd", b"zz\r\n\r\n"],
    "garbage in the piece that ends it": [BODY + b"ab", b"cdzz\r\n\r\n"],
    "another host": [BODY.replace(b"host: x", b"host: y") + b"abcd"],
    "no host": [BODY.replace(b"host: x\r\n", b"") + b"abcd"],
    "two keys": [BODY.replace(b"host", b"x-api-key: a\r\nx-api-key: b\r\nhost") + b"abcd"],
    "two lengths": [BODY.replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\n") + b"abcd"],
    "a length and chunks": [BODY.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n") + b"0\r\n\r\n"],
    "a length that is none": [BODY.replace(b": 4", b": 4x") + b"abcd"],
    "a negative length": [BODY.replace(b": 4", b": -4") + b"abcd"],
    "a huge length": [BODY.replace(b": 4", b": 99999999999999999999999") + b"abcd"],
    "zeros before the length": [BODY.replace(b": 4", b": 0004") + b"abcd"],
    "not whole": [BODY + b"ab"],
    "a long body": [BODY.replace(b": 4", b": 200000") + b"a" * 100_000, b"b" * 100_000, BODY + b"abcd"],
    "many": [(BODY + b"abcd") * 40],
    "many that are held": [HELD + b"abcd"] * 20,
    "held ones in one piece": [(HELD + b"abcd") * 20],
    "an early answer": [BODY.replace(b"/echo", b"/early"), b"abcd", BODY + b"abcd"],
    "blank lines before": [b"\r\n\r\n" + BODY + b"abcd"],
}


@pytest.mark.parametrize("path", [b"/echo", b"/held", b"/early", b"/parts"])
@pytest.mark.parametrize("name", TAILS)
async def test_a_known_call_is_answered_as_on_a_connection_that_knows_none(name: str, path: bytes) -> None:
    tail = [piece.replace(b"/echo", path) for piece in TAILS[name]]
    said, calls = [], []
    for before in (BODY, HEAD.replace(b"host", b"x-other: 1\r\nhost") + b"content-length: 4\r\n\r\n"):
        async with serving() as served:
            served.app.answer = b"an answer"
            if path != b"/held" or name == "a long body":  # which is read on when those before it are answered
                served.app.go_on.set()
            caller = await served.connect()
            practice = [before.replace(b"/echo", path) + b"abcd"] * NUM_BEFORE
            said.append(await all_said(caller, [*practice, *tail]))
            calls.append([(call.path, sorted(call.headers.items()), b"".join(call.parts)) for call in served.app.calls])
    assert said[0] == said[1]
    num_before = len(practice)
    assert calls[0][num_before:] == calls[1][num_before:]


async def test_the_head_that_is_learned_is_that_of_the_call(served: Served) -> None:
    """Not that of what came before it in the same piece, with as many lines."""
    other = b"PUT" + BODY[4:] + b"abcd"
    caller = await served.connect()
    for _ in range(NUM_BEFORE):
        await caller.send(other + BODY + b"abcd")
        assert {(await caller.answer()).status for _ in range(2)} == {200}
    await caller.send(other)
    await caller.answer()
    assert len(served.app.calls) == NUM_BEFORE


async def test_thousands_of_known_calls_in_one_piece_are_answered(served: Served) -> None:
    num = 3000
    served.app.answer = b"an answer"
    caller = await practised(served, BODY, b"an answer")
    asking = asyncio.create_task(caller.send((BODY + b"abcd") * num))
    assert {(await caller.answer()).status for _ in range(num)} == {200}
    await asking


@pytest.mark.interpreted
async def test_a_head_that_is_too_long_for_the_port_is_left_to_the_parser(found: list[bytes]) -> None:
    limits = HeadLimits(max_bytes=len(BODY))
    async with serving(PortConfig(keep_alive_s=60, head=limits)) as served:
        caller = await practised(served, BODY)
        await caller.send(BODY.replace(b": 4", b": 10") + b"0123456789")
        answer = await caller.answer()
        assert (answer.status, answer.code) == (431, "request_head_too_large")
