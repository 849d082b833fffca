"""Accepts the connections of one listening socket while there is room, and answers 503 to the others.

asyncio's own server accepts without a bound, counts no TLS handshake, and logs nothing when file descriptors run out.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from baton_serve.core.net.served.connections import Connections
from baton_serve.core.net.served.notices import CANNOT_ACCEPT, NO_DESCRIPTORS, NO_TLS, NOT_SERVED, TURNED_AWAY
from baton_serve.core.net.sockets import BACKLOG
from baton_serve.core.net.tls import HANDSHAKE_S
from baton_serve.core.protocol.errors import UnavailableError

logger = logging.getLogger("baton.net")

#: Connections accepted in one turn of the loop. Between two turns the loop reads what has come on other connections,
#: and does what else is due.
MOST_IN_A_TURN = 16
#: With so many connections in one turn of the loop that broke before they were accepted, it looks like a lasting error.
_MOST_GONE = 128
#: Connections closed to make room, for each pause without descriptors.
_NUM_CLOSED = 16
#: Pause when the system cannot accept anything, seconds.
_PAUSE_S = 0.05
_NOTHING_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: Errors of one connection that broke before it was accepted: the next one is accepted at once.
_GONE = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOPROTOOPT,
        errno.EPROTO,
        errno.ETIMEDOUT,
    }
)


@runtime_checkable
class Ignores(Protocol):
    """A protocol that can be set to throw away all further data."""

    def ignore(self) -> None:
        """Throw away all data from now on."""


class Acceptor:
    """Call ``start``, then ``close``. Each connection gets a protocol that ``make`` returns."""

    def __init__(self, sock: socket.socket, make: Callable[[], asyncio.Protocol], connections: Connections) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._make = make
        self._connections = connections
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Listen, and begin to accept connections."""
        self._sock.setblocking(False)
        self._sock.listen(BACKLOG)
        self._go_on()

    def close(self) -> None:
        """Accept nothing more, and end TLS handshakes. The caller closes the socket after this."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock)
        for opening in tuple(self._connections.opening):
            opening.abort()

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        num_taken = num_gone = 0
        while num_taken < MOST_IN_A_TURN:
            try:
                client, _address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                num_gone += 1
                if error.errno in _GONE and num_gone < _MOST_GONE:
                    continue
                self._wait(error)
                return
            num_taken += 1
            self._take(client)

    def _wait(self, error: OSError) -> None:
        """Accept nothing for a moment; connections wait in the backlog. Without descriptors, idle ones are closed."""
        if error.errno in _NOTHING_LEFT:
            self._connections.notices.note(NO_DESCRIPTORS)
            for _ in range(_NUM_CLOSED):
                self._connections.make_room()
        else:
            self._connections.notices.note(f"{CANNOT_ACCEPT} ({errno.errorcode.get(error.errno or 0, error.errno)})")
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(_PAUSE_S, self._go_on)

    def _take(self, client: socket.socket) -> None:
        if not self._connections.has_room():
            self._connections.notices.note(TURNED_AWAY)
            _turn_away(client, says_why=self._connections.config.tls is None)
            return
        opening = _Opening(client, self._make, self._connections)
        opening.start()


class _Opening:
    """An accepted connection until it has a protocol. For ``Connections`` it counts as a connection whose request head
    is awaited.
    """

    head_bytes = 0
    has_deadline = False

    def __init__(self, client: socket.socket, make: Callable[[], asyncio.Protocol], connections: Connections) -> None:
        self._client = client
        self._make = make
        self._connections = connections
        self._task: asyncio.Task[None]
        self._is_unwanted = False
        self._protocol: asyncio.Protocol | None = None

    def start(self) -> None:
        """Begin the TLS handshake, if there is one."""
        self._connections.opening.add(self)
        self._connections.owe(self)
        self._task = asyncio.get_running_loop().create_task(self._open())
        self._task.add_done_callback(self._end)

    def refuse_late_head(self) -> None:
        """Close the connection: its TLS handshake, which has a shorter timeout of its own, took too long."""
        self.abort()

    def abort(self) -> None:
        """Close at once, and drop what was sent on it.

        The task is not cancelled: with uvloop a protocol whose ``connection_made`` was just called would never get
        ``connection_lost``.
        """
        self._is_unwanted = True
        protocol: object = self._protocol
        if isinstance(protocol, Ignores):  # what has come already may be read before the connection ends
            protocol.ignore()
        with contextlib.suppress(OSError):  # the client has closed it already
            self._client.shutdown(socket.SHUT_RDWR)

    close = abort

    def unsent_bytes(self) -> int:
        """0, because nothing was sent."""
        return 0

    taken_bytes = unsent_bytes

    def _make_protocol(self) -> asyncio.Protocol:
        self._protocol = self._make()
        return self._protocol

    async def _open(self) -> None:
        if self._is_unwanted:
            self._client.close()
        else:
            await self._give_protocol()

    async def _give_protocol(self) -> None:
        loop, tls = asyncio.get_running_loop(), self._connections.config.tls
        timeout_s = None if tls is None else HANDSHAKE_S
        try:
            transport, _protocol = await loop.connect_accepted_socket(
                self._make_protocol, self._client, ssl=tls, ssl_handshake_timeout=timeout_s
            )
        except OSError:
            if tls is not None and not self._is_unwanted:
                self._connections.notices.note(NO_TLS)
            self._client.close()
        else:
            if self._is_unwanted:
                transport.abort()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._connections.opening.discard(self)
        self._connections.left.set()
        self._connections.forget(self)
        if task.cancelled():
            self._client.close()
        elif (error := task.exception()) is not None:
            self._connections.notices.note(f"{NOT_SERVED} ({type(error).__name__})")
            logger.debug("a connection met a bug", exc_info=error)
            self._client.close()


def _turn_away(client: socket.socket, *, says_why: bool) -> None:
    """Answer 503 without waiting for anything, and close. What the client has sent is read first: if it stayed unread,
    closing would reset the connection before the client reads the answer.
    """
    error = UnavailableError("Too many connections are open.", code="too_many_connections")
    body = error.to_json()
    head = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    with client, contextlib.suppress(OSError):
        client.setblocking(False)
        if says_why:
            client.send(head + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
            client.shutdown(socket.SHUT_WR)
            client.recv(1 << 16)
