"""One small HTTP GET over a connection of its own: how a handshake is asked for.

A general client costs the event loop 1 to 2 ms for each answer. A worker that meets 32 engines at once would decode
nothing for as long as 50 ms; this takes a tenth of it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
import msgspec

from core.net.tls import InternalTls

#: Status line and headers of an answer may take this much beside the body.
_MAX_HEAD_BYTES = 65536
_CHUNK_BYTES = 65536


class BadAnswerError(Exception):
    """What came is no HTTP answer, or too long, or cut off. The message is one line without anything of it."""


class Place(msgspec.Struct, frozen=True):
    """Where to ask: ``host`` as people call it, and its ``addresses`` (one or more), of which the best comes first.

    ``try_s``: seconds after which an address that has not let us connect is given up for the next one. The last has
    all the time there is.
    """

    host: str
    port: int
    addresses: tuple[str, ...]
    try_s: float
    #: How to ask there; None: without TLS.
    tls: InternalTls | None = None

    def connection(self) -> dict[str, Any]:
        """What ``open_connection`` is told besides."""
        if self.tls is None:
            return {}
        return {"ssl": self.tls.client(), "server_hostname": self.tls.name_of(self.host)}


class Answer:
    """A status and a body, from ``address``; httptools calls the ``on_`` methods."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.status = 0
        self.body = b""
        self.is_complete = False
        self._parts: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take the next bytes from the connection. Raises BadAnswerError."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise BadAnswerError(f"not an HTTP answer: {type(error).__name__}") from error

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """That was all; an interim answer (1xx) is none."""
        self.status = self._parser.get_status_code()
        self.body = b"".join(self._parts)
        self.is_complete = self.status >= 200


async def get(place: Place, path: str, authorization: bytes, max_body_bytes: int) -> Answer:
    """Ask. No timeout, no redirect, no proxy, no name is looked up; ``authorization`` may be empty.

    Raises OSError when nobody can be reached and BadAnswerError. Cancelling it closes the connection at once.
    """
    address, reader, writer = await _connect(place)
    try:
        writer.write(_request(place, path, authorization))
        return await _read(Answer(address), reader, max_body_bytes)
    finally:
        # Not ``close``, which first sends what a hanging peer has not taken.
        writer.transport.abort()


async def _connect(place: Place) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
    """One after the other, so that nobody costs more than one socket. Raises the OSError of the last."""
    *others, last = place.addresses
    for address in others:
        try:
            async with asyncio.timeout(place.try_s):
                return address, *await asyncio.open_connection(address, place.port, **place.connection())
        except OSError:  # TimeoutError is one
            continue
    return last, *await asyncio.open_connection(last, place.port, **place.connection())


def _request(place: Place, path: str, authorization: bytes) -> bytes:
    name = f"[{place.host}]" if ":" in place.host else place.host
    head = f"GET {path} HTTP/1.1\r\nHost: {name}:{place.port}\r\nConnection: close\r\n".encode()
    if authorization:
        head += b"Authorization: " + authorization + b"\r\n"
    return head + b"\r\n"


async def _read(answer: Answer, reader: asyncio.StreamReader, max_body_bytes: int) -> Answer:
    num_bytes = 0
    while not answer.is_complete:
        data = await reader.read(_CHUNK_BYTES)
        if not data:
            raise BadAnswerError("the answer is cut off")
        num_bytes += len(data)
        if num_bytes > max_body_bytes + _MAX_HEAD_BYTES:
            raise BadAnswerError(f"the answer has more than {max_body_bytes} bytes")
        answer.feed(data)
    return answer
