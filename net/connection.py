"""One client's connection: uvicorn's protocol, with bounds on what a stranger may have it keep.

The parser joins the pieces of a header again and again, so the bytes of a head are counted before they reach it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from protocol.errors import ApiError, BadRequestError, HeadTooLargeError

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

#: Where a request's ``scope["state"]`` has what closes its connection at once.
DROP = "drop"


@dataclass(frozen=True)
class HeadLimits:
    """How large the head of a request may be: the request line and the headers."""

    max_bytes: int = 64 << 10
    max_lines: int = 128


class Connection(HttpToolsProtocol):
    """Answers what it refuses in our shape, and closes."""

    def __init__(self, config: Config, server_state: ServerState, limits: HeadLimits) -> None:
        super().__init__(config, server_state, {})
        self._limits = limits
        #: A head is to come, or under way; else a body.
        self._in_head = True
        #: Of the head under way, as far as they were counted before parsing.
        self._head_bytes = 0
        self._refusal: ApiError | None = None

    def data_received(self, data: bytes) -> None:
        """Feed the parser no more of a head than it may have."""
        self._unset_keepalive_if_required()
        if self._in_head:
            room = self._limits.max_bytes - self._head_bytes
            self._head_bytes += len(data)
            if len(data) > room:
                self._feed(data[:room])
                if self.transport.is_closing():
                    return
                if self._in_head and self._head_bytes > self._limits.max_bytes:
                    self._refuse(self._too_large())
                    return
                data = data[room:]
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # served as if it had not been asked for
        except httptools.HttpParserError:
            self._refuse(self._refusal or BadRequestError("This is not HTTP.", code="invalid_http"))

    def on_message_begin(self) -> None:
        """A new request."""
        super().on_message_begin()
        self._num_lines = 1
        self._num_bytes = 0
        self.scope["state"][DROP] = self.transport.abort

    def on_url(self, url: bytes) -> None:
        """A part of it."""
        self._num_bytes += len(url)
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line; those after a body are of no use to anybody."""
        self._num_lines += 1
        self._num_bytes += len(name) + len(value)
        if self._num_lines > self._limits.max_lines or self._num_bytes > self._limits.max_bytes:
            self._refusal = self._too_large()
            raise self._refusal
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is over."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is over, too; the next head begins."""
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

    def _too_large(self) -> HeadTooLargeError:
        return HeadTooLargeError(
            f"The head of a request may have {self._limits.max_bytes} bytes in {self._limits.max_lines} lines."
        )

    def _refuse(self, error: ApiError) -> None:
        body = error.to_json()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()
