"""What goes wrong with accepting costs one connection, or a pause."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from baton_serve.core.net.served.acceptor import MOST_IN_A_TURN, Acceptor
from baton_serve.core.net.served.config import PortConfig
from baton_serve.core.net.served.connections import Connections
from baton_serve.core.net.served.notices import CANNOT_ACCEPT, NOT_SERVED
from tests.kits.patience import eventually


class Unlucky(socket.socket):
    """Has these errors to tell before anybody is accepted, and counts whom it accepts."""

    errors: tuple[int, ...] = ()
    num_accepted = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            number, *rest = self.errors
            self.errors = tuple(rest)
            raise OSError(number, "unlucky")
        accepted = super().accept()
        self.num_accepted += 1
        return accepted


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


def _buggy() -> asyncio.Protocol:
    raise RuntimeError("a bug")


@asynccontextmanager
async def accepting(make: Callable[[], asyncio.Protocol] = Greeter) -> AsyncIterator[tuple[Unlucky, Connections]]:
    """Fails if anything is left to the loop's handler of exceptions."""
    loop, unhandled = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    with Unlucky() as sock:
        sock.bind(("127.0.0.1", 0))
        connections = Connections(loop, PortConfig(keep_alive_s=60), set())
        acceptor = Acceptor(sock, make, connections)
        acceptor.start()
        try:
            async with asyncio.timeout(20):
                yield sock, connections
        finally:
            acceptor.close()
            connections.end()
    assert unhandled == []


async def said(sock: socket.socket) -> bytes:
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH])
async def test_an_error_of_one_connection_keeps_nobody_waiting(number: int) -> None:
    async with accepting() as (sock, connections):
        sock.errors = (number,) * 3
        assert await said(sock) == b"hello"
        assert not connections.notices.counts


async def test_any_other_error_of_accepting_is_told_and_followed_by_a_pause() -> None:
    async with accepting() as (sock, connections):
        sock.errors = (errno.EPERM,)
        assert await said(sock) == b"hello"
        assert connections.notices.counts == {f"{CANNOT_ACCEPT} (EPERM)": 1}


async def test_an_error_that_all_connections_seem_to_have_is_followed_by_a_pause_too() -> None:
    async with accepting() as (sock, connections):
        sock.errors = (errno.ENETDOWN,) * 200
        assert await said(sock) == b"hello"
        assert connections.notices.counts == {f"{CANNOT_ACCEPT} (ENETDOWN)": 1}


async def test_a_crowd_is_accepted_a_few_in_a_turn_of_the_loop() -> None:
    async with accepting() as (sock, _):
        num = 2 * MOST_IN_A_TURN + 3
        crowd = [socket.create_connection(sock.getsockname()) for _ in range(num)]
        in_turns: list[int] = []
        while (before := sock.num_accepted) < num:
            await asyncio.sleep(0)
            in_turns.append(sock.num_accepted - before)
        assert [one for one in in_turns if one] == [MOST_IN_A_TURN, MOST_IN_A_TURN, 3]
        for client in crowd:
            client.close()


async def test_a_lasting_error_is_looked_at_now_and_then() -> None:
    async with accepting() as (sock, connections):
        sock.shutdown(socket.SHUT_RDWR)
        what = f"{CANNOT_ACCEPT} (EINVAL)"
        await eventually(lambda: connections.notices.counts[what] >= 2)
        sock.listen()
        assert await said(sock) == b"hello"


async def test_a_connection_that_meets_a_bug_is_closed() -> None:
    async with accepting(_buggy) as (sock, connections):
        assert await said(sock) == b""
        assert connections.notices.counts == {f"{NOT_SERVED} (RuntimeError)": 1}
        assert len(connections) == 0


class Counted(asyncio.Protocol):
    """Knows whether its connection came and went."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.came, self.gone = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.events.append("made")
        self.came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.gone.set()


def abort_openings(turns: int, connections: Connections) -> None:
    """Those that open so many turns from now."""
    if turns:
        asyncio.get_running_loop().call_soon(abort_openings, turns - 1, connections)
        return
    for opening in tuple(connections.opening):
        opening.abort()


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_protocol_that_is_told_of_a_connection_is_told_of_its_end(run: Callable[..., None], turns: int) -> None:
    async def main() -> None:
        counted = Counted()

        def make() -> Counted:
            abort_openings(turns, connections)
            return counted

        async with accepting(make) as (sock, connections):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            await counted.came.wait()
            if turns < 2:  # later it is open, and no opening any more
                assert await reader.read() == b""
            writer.close()
            await counted.gone.wait()
            assert counted.events == ["made", "lost"]

    run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_data_on_a_connection_that_is_closed_while_it_opens_is_not_read(run: Callable[..., None]) -> None:
    read: list[bytes] = []

    class Reader(Counted):
        ignores = False

        def ignore(self) -> None:
            self.ignores = True

        def data_received(self, data: bytes) -> None:
            if not self.ignores:
                read.append(data)

    async def main() -> None:
        def make() -> Reader:
            abort_openings(1, connections)  # two turns later it is open
            return Reader()

        async with accepting(make) as (sock, connections):
            with socket.create_connection(sock.getsockname()) as client:
                client.sendall(b"hello")
                client.setblocking(False)
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
            await connections.opened()
        assert read == []

    run(main())
