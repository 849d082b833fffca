"""The HTTP of stub engines: it parses no more than is needed, so that the router's work is what is measured."""

from __future__ import annotations

import asyncio
import re
from typing import Protocol

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_END = b"\r\n\r\n"


class Answers(Protocol):
    """What an engine does with a request."""

    def post(self, request: EnginePort, body: bytes) -> None:
        """Answer a request for tokens, now or later."""


class EnginePort(asyncio.Protocol):
    """One connection of a router."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(_END)) >= 0:
            found = _LENGTH.search(self._received, 0, end + len(_END))
            whole = end + len(_END) + (int(found[1]) if found else 0)
            if len(self._received) < whole:
                return
            head, body = bytes(self._received[:end]), bytes(self._received[end + len(_END) : whole])
            del self._received[:whole]
            if head.startswith(b"POST /v1/"):
                self._answers.post(self, body)
            else:
                self.answer(b"{}")

    def answer(self, body: bytes) -> None:
        """Send a whole answer."""
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )

    def stream(self, first: bytes, last: bytes) -> None:
        """Send a stream of two chunks of events, one after the other."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._write(b"%b%x\r\n%b\r\n" % (head, len(first), first))
        self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))

    def _write(self, data: bytes) -> None:
        """Unless the router has gone."""
        if self._transport is not None:
            self._transport.write(data)


async def listen(answers: Answers) -> tuple[asyncio.Server, str]:
    """Serve an engine on a port that the system chooses; returns its URL too."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EnginePort(answers), "127.0.0.1", 0, backlog=4096)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
