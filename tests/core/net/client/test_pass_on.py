"""An answer that is passed on piece by piece, in the callbacks of its connection."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.core.net.client.connection import Connection
from baton_serve.core.net.client.errors import CallTimeout, ConnectionLost, NotHttp
from baton_serve.core.net.deadlines import Timeouts
from tests.kits.pipe import Pipe

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def piece(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Wire:
    """A connection whose bytes a test makes up, and what became of its answer."""

    def __init__(self) -> None:
        self.connection = Connection([], set(), Timeouts(asyncio.get_running_loop()))
        self.connection.connection_made(Pipe())
        self.answer: HttpAnswer = self.connection.send(b"")
        self.connection.data_received(HEAD)
        self.taken: list[bytes] = []
        self.takes_more = True
        self.error: Exception | None = None

    def take(self, data: bytes) -> bool:
        self.taken.append(data)
        if self.error is not None:
            raise self.error
        return self.takes_more

    async def passing_on(self) -> asyncio.Task[bool]:
        task = asyncio.create_task(self.answer.pass_on(self.take))
        await asyncio.sleep(0)
        return task


@pytest.fixture
async def wire(socketless: None) -> Wire:
    return Wire()


async def test_a_piece_is_taken_in_the_turn_in_which_it_comes(wire: Wire) -> None:
    wire.connection.data_received(piece(b"a"))
    task = await wire.passing_on()
    assert wire.taken == [b"a"], "what had come before"
    wire.connection.data_received(piece(b"b") + piece(b"c"))
    assert wire.taken == [b"a", b"bc"], "at once, and together what came together"
    wire.connection.data_received(piece(b"d") + LAST)
    assert wire.taken[2:] == [b"d"]
    assert await task is True


async def test_a_taker_that_takes_no_more_is_given_the_rest_later(wire: Wire) -> None:
    task = await wire.passing_on()
    wire.takes_more = False
    wire.connection.data_received(piece(b"a"))
    wire.connection.data_received(piece(b"b"))
    assert await task is False
    wire.connection.data_received(piece(b"c") + LAST)
    assert wire.taken == [b"a"]
    assert await wire.answer.pass_on(wire.take) is False, "it still takes only one"
    wire.takes_more = True
    assert await wire.answer.pass_on(wire.take) is True
    assert wire.taken == [b"a", b"bc"]


async def test_a_connection_is_paused_while_nobody_takes_its_pieces(wire: Wire) -> None:
    transport = wire.connection._transport
    assert isinstance(transport, Pipe)
    task = await wire.passing_on()
    wire.takes_more = False
    wire.connection.data_received(piece(b"a"))
    for _ in range(5):
        wire.connection.data_received(piece(b"x" * 65536))
    assert await task is False
    assert not transport.is_reading
    wire.takes_more = True
    task = await wire.passing_on()
    assert transport.is_reading and len(wire.taken[-1]) == 5 * 65536
    task.cancel()


@pytest.mark.parametrize("more", [b"", LAST])
async def test_an_error_of_the_taker_is_raised_to_whoever_passes_on(wire: Wire, more: bytes) -> None:
    task = await wire.passing_on()
    wire.error = ValueError("no such event")
    wire.connection.data_received(piece(b"a") + more)
    wire.connection.data_received(b"" if more else piece(b"b"))
    with pytest.raises(ValueError, match="no such event"):
        await task
    assert wire.taken == [b"a"], "nothing is taken after an error"


@pytest.mark.parametrize("garbage", [b"", b"no chunk"])
async def test_pieces_that_came_before_a_loss_are_taken(wire: Wire, garbage: bytes) -> None:
    task = await wire.passing_on()
    wire.connection.data_received(piece(b"a") + garbage)
    if not garbage:
        wire.connection.connection_lost(None)
    with pytest.raises(NotHttp if garbage else ConnectionLost):
        await task
    assert wire.taken == [b"a"]


@pytest.mark.interpreted
async def test_an_answer_is_silent_only_when_nothing_more_comes(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, looks = [0.0], []

    def call_later(delay_s: float, look: Callable[[], object]) -> Any:
        looks.append(look)
        return SimpleNamespace(cancel=lambda: None)

    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0])
    monkeypatch.setattr(wire.connection, "call_later", call_later)
    task = await wire.passing_on()
    wire.answer.watch(4)
    for _ in range(8):
        now_s[0] += 1
        wire.connection.data_received(piece(b"a"))
        looks.pop()()
    assert wire.answer.waiting() is not None, "twice as long as it may be silent"
    for _ in range(4):
        assert wire.answer.waiting() is not None
        now_s[0] += 1
        looks.pop()()
    with pytest.raises(CallTimeout):
        await task


async def test_nothing_is_taken_after_a_cancel(wire: Wire) -> None:
    task = await wire.passing_on()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    wire.connection.data_received(piece(b"a"))
    assert not wire.taken


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 11, 1000])
async def test_however_chunks_are_cut_the_stream_is_the_same(wire: Wire, step: int) -> None:
    pieces = [b"a", b"b" * 5000, b"c\r\n", b"\r\n", b"d" * 17, b"0\r\n\r\n"] * 3
    task = await wire.passing_on()
    data = b"".join(map(piece, pieces)) + LAST
    for begin in range(0, len(data), step):
        wire.connection.data_received(data[begin : begin + step])
    assert await task is True
    assert b"".join(wire.taken) == b"".join(pieces)


async def test_one_chunk_at_a_time_is_passed_on_as_it_is(wire: Wire) -> None:
    pieces = [b"a", b"b" * 5000, b"c\r\n", b"\r\n", b"0\r\n\r\n"] * 2
    task = await wire.passing_on()
    for data in (*map(piece, pieces), LAST):
        wire.connection.data_received(data)
    assert await task is True
    assert wire.taken == pieces
    assert wire.connection.idle == [wire.connection]


async def test_a_malformed_chunk_breaks_the_stream_at_once(wire: Wire) -> None:
    task = await wire.passing_on()
    wire.connection.data_received(piece(b"a"))
    wire.connection.data_received(b"2\r\nabc\r\n")
    with pytest.raises(NotHttp):
        await task
    assert wire.taken[0] == b"a"


@pytest.mark.interpreted
async def test_an_answer_in_small_pieces_takes_no_more_than_its_bytes(wire: Wire) -> None:
    reading = asyncio.ensure_future(wire.answer.read(1 << 20, None))
    tracemalloc.start()
    for number in range(20_000):
        wire.answer.feed(b"%d" % (number % 90 + 10))
        wire.answer.wake()
        await asyncio.sleep(0)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    wire.answer.finish()
    wire.answer.wake()
    assert len(await reading) == 40_000
    assert num_bytes < 3 * 40_000
