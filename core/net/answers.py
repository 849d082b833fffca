"""Answers over ASGI: what every port writes in the same way."""

from __future__ import annotations

from collections.abc import Iterable
from http.client import responses
from typing import TYPE_CHECKING, Final

from baton_serve.core.protocol.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import Send

Header = tuple[bytes, bytes]

#: The first line of an answer, by its status: a worker may answer with one that has no name.
STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {responses.get(status, '')}\r\n".encode() for status in range(100, 600)
}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
#: The line of an answer that is the last one of its connection.
CLOSE: Final = b"connection: close\r\n"
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

JSON: Final = b"application/json"
#: Headers of a stream of events. The last one keeps nginx from buffering events, which would reach clients late.
EVENT_STREAM: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def retry_after(error: ApiError) -> tuple[Header, ...]:
    """The header ``Retry-After`` of an error, in whole seconds, if the error says when to retry."""
    return () if error.retry_after_s is None else ((b"retry-after", b"%d" % max(1, round(error.retry_after_s))),)


def header_lines(headers: Iterable[Header]) -> bytes:
    """Headers as they are sent. No value may have a line break."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


async def send_whole(
    send: Send, status: int, body: bytes, content_type: bytes = JSON, headers: Iterable[Header] = ()
) -> None:
    """Send an answer in one piece."""
    start = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
