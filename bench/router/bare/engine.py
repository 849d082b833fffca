"""An engine, and the connections to it that are kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Reader(Protocol):
    """The side that asks."""

    #: The connection that the answer comes from; None: there is none yet.
    leg: Leg | None
    #: Whether it wants no answer any more.
    is_gone: bool

    def take(self, data: bytes) -> bool:
        """Take what has come. Returns whether it is the last of the answer."""

    def lose(self) -> None:
        """The answer will not be whole."""


class Engine:
    """Serves on a loopback port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Leg] = []
        self._opening: set[asyncio.Task[None]] = set()

    def ask(self, request: Sequence[bytes | memoryview], reader: Reader) -> None:
        """Send the request, on a new connection if no kept one is free."""
        if self._idle:
            self._idle.pop().send(request, reader)
            return
        opening = asyncio.get_running_loop().create_task(self._open(request, reader))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, request: Sequence[bytes | memoryview], reader: Reader) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, leg = await loop.create_connection(lambda: Leg(self._idle), "127.0.0.1", self._port)
        except OSError:
            reader.lose()
            return
        if reader.is_gone:
            self._idle.append(leg)
        else:
            leg.send(request, reader)


class Leg(asyncio.Protocol):
    """A connection, which puts itself into ``idle`` when an answer is whole."""

    def __init__(self, idle: list[Leg]) -> None:
        self._idle = idle
        self._reader: Reader | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def send(self, request: Sequence[bytes | memoryview], reader: Reader) -> None:
        """Send a whole request."""
        self._reader = reader
        reader.leg = self
        if len(request) == 1:
            self._transport.write(request[0])
        else:
            self._transport.writelines(request)

    def abort(self) -> None:
        """Close: nobody wants the rest of the answer."""
        self._reader = None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is not None and reader.take(data):
            self._reader = None
            self._idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        if self._reader is not None:
            self._reader.lose()
