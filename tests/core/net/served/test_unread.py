"""Whoever asks and does not read is not waited for, and keeps nobody else out."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.core.net.served.config import PortConfig
from baton_serve.core.net.served.connection import Connection
from baton_serve.core.net.served.connections import LOOK_S, Unread
from baton_serve.core.net.served.notices import MADE_ROOM, TURNED_AWAY, UNREAD
from tests.kits.clock import Clock
from tests.kits.patience import eventually
from tests.kits.port import GET, Caller, Served, as_calls, serving

LONG = b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n"
TIMED = b"POST /timed HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
IMPATIENT = PortConfig(keep_alive_s=60, unread_s=0.05)
FEW = PortConfig(keep_alive_s=60, max_connections=4)


@pytest.mark.parametrize("sent", [LONG, LONG + GET * 15], ids=["one request", "more behind it"])
async def test_a_client_that_takes_nothing_of_an_answer_is_disconnected(sent: bytes) -> None:
    async with serving(IMPATIENT) as served:
        await unread(served, sent)
        await eventually(lambda: len(served.port.connections) == 0)
        assert served.port.connections.notices.counts == {UNREAD: 1}


async def test_an_answer_with_a_deadline_of_its_own_is_left_to_that() -> None:
    as_calls.set(True)  # only calls have one
    async with serving(IMPATIENT) as served:
        await unread(served, TIMED)
        for _ in range(3):
            await unread(served, LONG)
            await eventually(lambda: len(served.port.connections) == 1)
        assert served.port.connections.notices.counts == {UNREAD: 3}
        (connection,) = connections(served)
        assert connection.has_deadline


async def test_a_client_that_takes_nothing_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_serve.core.net.served.connections.LOOK_S", 0.02)
    async with serving(FEW) as served:
        for _ in range(4):
            await unread(served, LONG)
        await eventually(served.port.connections._unread.oldest)
        _, answer = await served.ask(GET)
        assert answer.status == 200
        assert served.port.connections.notices.counts == {MADE_ROOM: 1}


async def test_a_client_just_answered_more_than_fits_makes_room_for_nobody() -> None:
    async with serving(FEW) as served:
        for _ in range(4):
            await unread(served, LONG)
        _, answer = await served.ask(b"")
        assert answer.status == 503
        assert served.port.connections.notices.counts == {TURNED_AWAY: 1}


async def test_a_connection_sees_how_much_its_client_takes(served: Served) -> None:
    caller = await unread(served, LONG)
    (connection,) = connections(served)
    before = None
    while before != (before := connection.taken_bytes()):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    caller.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(256):
        await caller.reader.readexactly(1 << 16)
    assert connection.taken_bytes() != before


async def unread(served: Served, sent: bytes) -> Caller:
    """Whoever sends this, and reads nothing; its answer waits for it."""
    caller = await served.connect()
    caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
    num_before = len(waiting(served))
    await caller.send(sent)
    await eventually(lambda: len(waiting(served)) > num_before)
    return caller


def connections(served: Served) -> set[Connection]:
    return served.port.served.connections


def waiting(served: Served) -> list[Connection]:
    return [connection for connection in connections(served) if connection.flow.write_paused]


class Reader:
    """Takes what it is told to."""

    def __init__(self) -> None:
        self.has_deadline = False
        self.num_taken = 7

    def taken_bytes(self) -> int:
        return self.num_taken


class TestOnAClock:
    """The time itself."""

    def test_a_client_that_takes_nothing_is_given_up_once_in_its_time(self) -> None:
        clock, gone, reader = Clock(), [], Reader()
        waits = Unread[Reader](clock, 60.0, gone.append)
        waits.add(reader)
        clock.go_on(60.0)
        assert not gone
        clock.go_on(2 * LOOK_S)
        assert gone == [reader]
        clock.go_on(600.0)
        assert gone == [reader]
        assert not clock.waiting

    def test_a_client_that_takes_a_little_now_and_then_may_stay(self) -> None:
        clock, gone, reader = Clock(), [], Reader()
        waits = Unread[Reader](clock, 60.0, gone.append)
        waits.add(reader)
        for _ in range(20):
            clock.go_on(50.0)
            assert waits.oldest() is reader, "but it makes room for others"
            reader.num_taken += 1
            clock.go_on(LOOK_S)
            assert waits.oldest() is None
        assert not gone

    def test_a_client_that_went_on_begins_anew(self) -> None:
        clock, gone, reader = Clock(), [], Reader()
        waits = Unread[Reader](clock, 60.0, gone.append)
        for _ in range(5):
            waits.add(reader)
            clock.go_on(55.0)
            waits.discard(reader)
            assert waits.oldest() is None
        clock.go_on(600.0)
        assert not gone

    def test_the_time_after_a_deadline_of_its_own_is_counted_from_its_end(self) -> None:
        clock, gone, reader = Clock(), [], Reader()
        reader.has_deadline = True
        waits = Unread[Reader](clock, 60.0, gone.append)
        waits.add(reader)
        clock.go_on(600.0)
        assert waits.oldest() is None
        reader.has_deadline = False
        clock.go_on(55.0)
        assert not gone
        clock.go_on(2 * LOOK_S)
        assert gone == [reader]

    def test_the_client_that_takes_nothing_for_longest_makes_room_first(self) -> None:
        clock, readers = Clock(), [Reader() for _ in range(3)]
        waits = Unread[Reader](clock, 60.0, lambda _: None)
        for reader in readers:
            waits.add(reader)
            clock.go_on(1.0)
        clock.go_on(2 * LOOK_S)
        assert waits.oldest() is readers[0]
        waits.discard(readers[0])
        assert waits.oldest() is readers[1]
