"""Whatever comes, in whatever pieces: a connection that knows a head does what one does that always asks the parser."""

from __future__ import annotations

import asyncio
from itertools import pairwise, zip_longest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from baton_serve.core.net.known_head import KnownHead
from baton_serve.core.net.served.call import HttpCall
from baton_serve.core.net.served.config import HeadLimits, PortConfig
from baton_serve.core.net.served.connection import MAX_PIPELINED, Connection, Served
from baton_serve.core.net.served.connections import Connections
from tests.kits.pipe import Pipe
from tests.kits.port import GET

pytestmark = [pytest.mark.interpreted, pytest.mark.parametrize("kind", ["calls"], indirect=True)]
#: So small that bodies are larger.
MAX_HEAD_BYTES = 100
#: Makes a head too long. Such a one begins a piece: where the parser finds a head behind a body, it counts only what
#: comes in later pieces, while what follows a known head's body is counted from its first byte.
LONG = b"a: %b\r\n" % (b"b" * MAX_HEAD_BYTES)
PATHS = (b"/echo", b"/held", b"/early", b"/grumpy")
#: Stands for the path of the head that is known.
KNOWN = b"/known"
HEADERS = (b"connection: close\r\n", b"expect: 100-continue\r\n", b"a: b\r\n", b"host: y\r\n", b"x\r\n", LONG)
IN_CHUNKS = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"


def message(path: bytes, body: bytes, more: bytes = b"", num_missing: int = 0) -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n"
    return head % (path, more, len(body) + num_missing) + body


BODIES = st.binary(max_size=4) | st.sampled_from([b"a" * 200, b"POST /echo", b"\r\n"])
MESSAGES = st.one_of(
    st.builds(message, st.just(KNOWN), BODIES),
    st.builds(message, st.just(KNOWN), st.binary(max_size=4)),
    st.builds(message, st.sampled_from(PATHS), BODIES),
    st.builds(
        message, st.sampled_from([*PATHS, KNOWN]), st.binary(max_size=4), st.sampled_from(HEADERS), st.integers(0, 1)
    ),
    st.sampled_from([b"\r\n", b"zz\r\n\r\n", IN_CHUNKS, GET]),
)
ACTIONS = st.sampled_from(["", "", "let go", "turn", "shut down", "client stops reading", "client reads"])


#: It sends no more. What it does of the rest of that piece, nobody sees.
CLOSED = "closed"


class Line(Pipe):
    """Notes what is written and said in one list."""

    def __init__(self, said: list[object]) -> None:
        super().__init__()
        self.said = said

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.said.append(bytes(data))

    def write_eof(self) -> None:
        self.said.append(CLOSED)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        super().abort()
        self.said.append(CLOSED)

    def get_write_buffer_size(self) -> int:
        return 0


class Noted:
    """Answers as its path says, and notes all that it is told."""

    urls = frozenset(PATHS)

    def __init__(self, said: list[object]) -> None:
        self.said = said
        self.held: list[HttpCall] = []

    def begin(self, call: HttpCall) -> None:
        self.said.append(("begin", call.path, sorted(call.headers.items()), call.num_bytes))
        if call.path == "/early":
            call.answer(200, b"", b"early")

    def wait(self, call: HttpCall) -> None:
        self.said.append(("wait", call.num_bytes))

    def took(self, call: HttpCall, _num_bytes: int) -> None:
        """Not noted: of one piece, the parser may tell more than one part."""
        if call.path == "/grumpy" and call.num_bytes > 2:
            call.answer(413, b"", b"too much")

    def serve(self, call: HttpCall) -> None:
        self.said.append(("serve", call.body(), call.keep_alive))
        if call.path == "/held":
            self.held.append(call)
        else:
            call.answer(200, b"", b"served")

    def gone(self, call: HttpCall) -> None:
        self.said.append(("gone", call.path))


class KnowsNothing(KnownHead):
    """The parser is always asked."""

    def end_in(self, data: bytes) -> int:
        return 0


class Side:
    """A connection, and all that is to be seen of it."""

    def __init__(self, known: KnownHead) -> None:
        self.said: list[object] = []
        self.calls = Noted(self.said)
        self.line = Line(self.said)
        config = PortConfig(keep_alive_s=60, head=HeadLimits(max_bytes=MAX_HEAD_BYTES))
        served = Served(self.app, self.calls)
        self.port = Connections(asyncio.get_running_loop(), config, served.connections)
        self.connection = Connection(self.port, served)
        self.connection._learned.head = known
        self.connection.connection_made(self.line)

    async def app(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answers what is no call."""
        self.said.append(scope["method"])
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    def practise(self, path: bytes) -> None:
        """Three times the same head: of the last one it is known."""
        for _ in range(3):
            self.hear(message(path, b"ab"))
            self.let_go()

    def hear(self, piece: bytes) -> None:
        """Nothing comes after it has closed."""
        if piece and not self.line.aborted:
            self.connection.data_received(piece)

    def let_go(self) -> None:
        """Answer the oldest call that is held."""
        if self.calls.held:
            self.calls.held.pop(0).answer(200, b"", b"at last")

    async def act(self, action: str) -> None:
        """Have something else happen."""
        connection = self.connection
        if action == "let go":
            self.let_go()
        elif action == "turn":
            for _ in range(4):
                await asyncio.sleep(0)
        elif action == "shut down" and not self.line.aborted:
            connection.shutdown()
        elif action == "client stops reading" and not connection.flow.write_paused:
            connection.pause_writing()
        elif action == "client reads" and connection.flow.write_paused:
            connection.resume_writing()

    def seen(self) -> list[object]:
        """What was said until it closed its side."""
        return self.said[: self.said.index(CLOSED)] if CLOSED in self.said else self.said

    def state(self) -> tuple[object, ...]:
        """What may happen next, and which timeouts run."""
        connection, port = self.connection, self.port
        seen = connection._ignores, connection._goes_on, connection._is_full, len(connection._behind)
        timeouts = [connection in timeout for timeout in (port._heads, port._idle, port._leaving)]
        return self.line.is_reading, connection.has_deadline, *seen, *timeouts


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(PATHS),
    st.lists(st.tuples(MESSAGES, st.booleans()), max_size=8),
    st.sets(st.integers(0, 500), max_size=4),
    st.lists(ACTIONS, max_size=8),
)
async def test_a_connection_that_knows_a_head_does_as_one_that_asks_the_parser(
    path: bytes, messages: list[tuple[bytes, bool]], cuts: set[int], actions: list[str]
) -> None:
    """``messages``: each, and whether what follows is in the same piece. ``cuts``: where else a piece ends.

    ``actions``: what happens after each piece.
    """
    data, ends = b"", set(cuts)
    for text, is_joined in messages:
        if LONG in text:
            ends.add(len(data))
        data += text.replace(KNOWN, path)
        if not is_joined:
            ends.add(len(data))
    ends = {end for end in ends if 0 < end < len(data)} | {len(data)}
    pieces = [data[begin:end] for begin, end in pairwise([0, *sorted(ends)])]
    practised, plain = Side(KnownHead()), Side(KnowsNothing())
    for side in (practised, plain):
        side.practise(path)
        for piece, action in zip_longest(pieces, actions):
            side.hear(piece or b"")
            await side.act(action or "")
            side.said.append(side.state())
        side.connection.connection_lost(None)
        await asyncio.sleep(0)
    assert practised.seen() == plain.seen()


async def test_the_number_of_requests_that_wait_behind_a_call_is_bounded() -> None:
    practised, plain = Side(KnownHead()), Side(KnowsNothing())
    for side in (practised, plain):
        side.practise(b"/held")
        for _ in range(MAX_PIPELINED + 2):
            side.hear(message(b"/held", b"abcd"))
        for _ in range(MAX_PIPELINED + 2):
            side.let_go()
    assert practised.seen() == plain.seen()
    served = [one for one in plain.said if isinstance(one, tuple) and one[0] == "serve"]
    assert len(served) == 3 + 1 + MAX_PIPELINED


@pytest.mark.parametrize("known", [KnownHead, KnowsNothing])
@pytest.mark.parametrize(
    "begin", [message(b"/echo", b"ab"), message(b"/echo", b"", num_missing=2)], ids=["whole", "head"]
)
@pytest.mark.parametrize(
    ("rest", "runs"),
    [
        pytest.param(b"", "idle", id="nothing"),
        pytest.param(b"\r\n", "idle", id="a blank line"),
        pytest.param(b"P", "head", id="the next head"),
        pytest.param(message(b"/held", b"ab"), "", id="a call under way"),
    ],
)
async def test_a_timeout_runs_for_a_head_that_begins_behind_a_body(
    known: type[KnownHead], begin: bytes, rest: bytes, runs: str
) -> None:
    side = Side(known())
    side.practise(b"/echo")
    body = b"ab" if begin.endswith(b"\r\n") else b""
    for pieces in ([begin + body + rest], [begin, body + rest], [begin + body, rest]):
        for piece in pieces:
            side.hear(piece)
        port = side.port
        running = [name for name, some in (("idle", port._idle), ("head", port._heads)) if side.connection in some]
        assert running == [runs] * bool(runs)
        side.let_go()
        side.hear(b"OST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n" if rest == b"P" else b"")
