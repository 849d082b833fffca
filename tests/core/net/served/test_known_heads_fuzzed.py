"""Whatever comes, in whatever pieces: a connection that knows a head does what one does that always asks the parser."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from core.net.known_head import KnownHead
from core.net.served.config import HeadLimits, PortConfig
from core.net.served.connection import Connection
from core.net.served.connections import Connections
from tests.kits.port import as_calls

if TYPE_CHECKING:
    from core.net.served.call import HttpCall

#: So small that bodies are larger. No head is a little longer: one that begins behind a body the parser counts later.
MAX_HEAD_BYTES = 100
HEADERS = (
    b"connection: close\r\n",
    b"expect: 100-continue\r\n",
    b"a: b\r\n",
    b"host: y\r\n",
    b"x\r\n",
    b"a: %b\r\n" % (b"b" * MAX_HEAD_BYTES),
)
PATHS = (b"/echo", b"/held", b"/early", b"/grumpy")
#: Stands for the path of the head that is known.
KNOWN = b"/known"


@pytest.fixture(autouse=True)
def kind() -> None:
    as_calls.set(True)


IN_CHUNKS = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"


def head(path: bytes, num_bytes: int, more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n" % (path, more, num_bytes)


def message(path: bytes, body: bytes, more: bytes = b"", too_many: int = 0) -> bytes:
    return head(path, len(body) + too_many, more) + body


MESSAGES = st.one_of(
    st.builds(message, st.just(KNOWN), st.binary(max_size=4) | st.sampled_from([b"a" * 200, b"POST /echo"])),
    st.builds(message, st.just(KNOWN), st.binary(max_size=4)),
    st.builds(message, st.sampled_from(PATHS), st.binary(max_size=4) | st.sampled_from([b"a" * 200, b"POST /echo"])),
    st.builds(message, st.sampled_from(PATHS), st.binary(max_size=4)),
    st.builds(
        message,
        st.sampled_from([*PATHS, KNOWN]),
        st.binary(max_size=4),
        st.sampled_from(HEADERS),
        st.integers(0, 1),
    ),
    st.sampled_from(
        [
            b"\r\n",
            b"zz\r\n\r\n",
            b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        ]
    ),
)


class Pipe(asyncio.Transport):
    """Keeps what is written, and what else it is told."""

    def __init__(self, said: list[object]) -> None:
        super().__init__()
        self.said = said
        self.is_over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.said.append(bytes(data))

    def write_eof(self) -> None:
        self.said.append("end")

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.is_over = True

    def pause_reading(self) -> None:
        self.said.append("pause")

    def resume_reading(self) -> None:
        self.said.append("resume")

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

    def took(self, call: HttpCall, num_bytes: int) -> None:
        self.said.append(("took", num_bytes, call.num_bytes))
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
        self.pipe = Pipe(self.said)
        state = ServerState()
        config = PortConfig(keep_alive_s=60, head=HeadLimits(max_bytes=MAX_HEAD_BYTES))
        port = Connections(asyncio.get_running_loop(), config, state.connections)
        self.connection = Connection(cast("Any", None), state, port, self.calls)
        self.connection._known = known
        self.connection.connection_made(self.pipe)

    def hear(self, piece: bytes) -> None:
        """None of what comes after it has closed."""
        if not self.pipe.is_over:
            self.connection.data_received(piece)

    def let_go(self) -> None:
        """Answer the oldest call that is held."""
        if self.calls.held:
            self.calls.held.pop(0).answer(200, b"", b"at last")


@pytest.mark.interpreted
@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(PATHS),
    st.lists(st.tuples(MESSAGES, st.booleans()), max_size=8),
    st.sets(st.integers(0, 500), max_size=4),
    st.sets(st.integers(0, 8)),
)
async def test_both_do_the_same(
    path: bytes, messages: list[tuple[bytes, bool]], cuts: set[int], let_go_at: set[int]
) -> None:
    """``messages``: each, and whether what follows is in the same piece. ``cuts``: where else a piece ends."""
    practised, plain = Side(KnownHead()), Side(KnowsNothing())
    known = message(path, b"ab")
    data, ends = b"", set(cuts)
    for text, is_joined in messages:
        data += text.replace(KNOWN, path)
        if not is_joined:
            ends.add(len(data))
    ends = {end for end in ends if 0 < end < len(data)} | {len(data)}
    pieces = [data[begin:end] for begin, end in pairwise([0, *sorted(ends)])]
    for side in (practised, plain):
        for _ in range(3):
            side.hear(known)
            side.let_go()
        for at, piece in enumerate(pieces):
            if piece:
                side.hear(piece)
            if at in let_go_at:
                side.let_go()
        side.said.append((side.pipe.is_over, side.connection._ignores, side.connection.has_deadline))
        side.connection.connection_lost(None)
    assert told(practised) == told(plain)


def told(side: Side) -> list[object]:
    """What was said, but for how the bytes of one body were told: the parser may give them in more parts."""
    return [one for one in side.said if not (isinstance(one, tuple) and one[0] == "took")]
