"""One small HTTP GET over a connection of its own: how a handshake is asked for.

A general client costs the event loop 1 to 2 ms for each answer. A worker that meets 32 engines at once would decode
nothing for as long as 50 ms; this takes a tenth of it.
"""

from __future__ import annotations

import asyncio

import httptools

#: Status line and headers of an answer may take this much beside the body.
_MAX_HEAD_BYTES = 65536
_CHUNK_BYTES = 65536


class BadAnswerError(Exception):
    """What came is no HTTP answer, or too long, or cut off. The message is one line without anything of it."""


class Answer:
    """A status and a body; httptools calls the ``on_`` methods."""

    def __init__(self) -> None:
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


async def get(host: str, port: int, path: str, authorization: bytes, max_body_bytes: int) -> Answer:
    """Ask. No timeout, no redirect, no proxy; ``authorization`` may be empty.

    Raises OSError when nobody can be reached and BadAnswerError. Cancelling it closes the connection at once.
    """
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except UnicodeError as error:
        raise OSError(f"{host!r} cannot be a host name") from error
    try:
        writer.write(_request(host, port, path, authorization))
        return await _read(reader, max_body_bytes)
    finally:
        # Not ``close``, which first sends what a hanging peer has not taken.
        writer.transport.abort()


def _request(host: str, port: int, path: str, authorization: bytes) -> bytes:
    name = f"[{host}]" if ":" in host else host
    head = f"GET {path} HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n".encode()
    if authorization:
        head += b"Authorization: " + authorization + b"\r\n"
    return head + b"\r\n"


async def _read(reader: asyncio.StreamReader, max_body_bytes: int) -> Answer:
    answer, num_bytes = Answer(), 0
    while not answer.is_complete:
        data = await reader.read(_CHUNK_BYTES)
        if not data:
            raise BadAnswerError("the answer is cut off")
        num_bytes += len(data)
        if num_bytes > max_body_bytes + _MAX_HEAD_BYTES:
            raise BadAnswerError(f"the answer has more than {max_body_bytes} bytes")
        answer.feed(data)
    return answer
