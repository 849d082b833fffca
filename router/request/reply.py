"""Writes the answer to the client. Headers are sent only with the first content.

A client that does not read is waited for between writes, but not at the end of its request: ``error`` waits for
``LAST_WRITE_S`` at most, and then drops the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from baton_serve.core.net.answers import EVENT_STREAM, JSON, Header, header_lines, retry_after
from baton_serve.core.net.served.call import HttpCall
from baton_serve.core.protocol.errors import ApiError

#: Seconds that the final error may wait for a client that does not read.
LAST_WRITE_S = 1.0
#: Bytes of a stream that are kept until its first content. Events without content are few; with more of them than that,
#: the answer begins.
MAX_UNSENT_BYTES: Final = 64 << 10

_STREAM_LINES: Final = header_lines(EVENT_STREAM)
#: OpenAI's header for a client's own id of its request, under which the router also sends it back.
_ID_HEADER: Final = b"x-client-request-id"
#: The headers that a client may use; the first wins. In an answer the second one has the router's own id.
_GIVEN: Final = (_ID_HEADER, b"x-request-id")
#: Printable ASCII; the length limit is OpenAI's.
_CLIENT_ID: Final = re.compile(rb"[ -~]{1,512}")


def client_id(headers: Mapping[bytes, bytes]) -> str:
    """The id that a client gives its own request; empty if missing, too long or not printable.

    It is sent back, and shown in log and trace. Never truncated: a part would be another id.
    """
    for name in _GIVEN:
        given = headers.get(name)
        if given is not None and _CLIENT_ID.fullmatch(given):
            return given.decode("ascii")
    return ""


class Reply:
    """Where the steps of a request write its answer. A base class, not a protocol: compiled, it costs less to call."""

    def __init__(self, client_id: str) -> None:
        #: The client's own id of the request; empty if it gave none.
        self.client_id = client_id
        #: Whether any of this answer has been sent.
        self.started = False
        #: When the first content of its stream left, on the loop's clock; None before.
        self.first_content_s: float | None = None

    @property
    def is_begun(self) -> bool:
        """Whether the client has been sent anything, so that an error can only be an event."""
        raise NotImplementedError

    async def write(self, data: bytes, *, content: bool = True) -> None:
        """Wait until the client has read, then ``put``."""
        await self.drain()
        self.put(data, content=content)

    def put(self, data: bytes, *, content: bool = True) -> bool:
        """Send part of a stream. Returns False if the client does not read as fast as that: ``drain`` before the next.

        Data without ``content`` is kept until the first content comes, or ``MAX_UNSENT_BYTES``.
        """
        raise NotImplementedError

    def put_comments(self, data: bytes) -> bool:
        """Send comments, which only show that a worker computes: not before anything else has been sent."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Wait until the client has read."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drop the data kept until the first content. Only before the answer has begun."""
        raise NotImplementedError

    async def end(self) -> None:
        """Wait until the client has read, then ``end_now``."""
        raise NotImplementedError

    def end_now(self) -> None:
        """Complete the stream."""
        raise NotImplementedError

    async def whole(self, status: int, content_type: bytes, body: bytes, headers: Iterable[Header] = ()) -> None:
        """Send the answer in one piece."""
        raise NotImplementedError


class ClientReply(Reply):
    """The answer of one client."""

    def __init__(self, call: HttpCall, request_id: str, client_id: str = "") -> None:
        super().__init__(client_id)
        self._call = call
        self._request_id = request_id
        theirs = b"%b: %b\r\n" % (_ID_HEADER, client_id.encode("ascii")) if client_id else b""
        self._id_lines = b"x-request-id: %b\r\n%b" % (request_id.encode("ascii"), theirs)
        self._unsent = b""
        #: Whether the events of its stream have names; an error is then called ``error``.
        self.names_events = False
        #: Whether the last write has begun.
        self.ended = False

    @property
    def is_begun(self) -> bool:
        return self.started

    def put(self, data: bytes, *, content: bool = True) -> bool:
        call = self._call
        if self.started:
            return call.write(data)
        data = self._unsent + data
        if not content and len(data) <= MAX_UNSENT_BYTES:
            self._unsent = data
            return True
        self._unsent = b""
        self.first_content_s = asyncio.get_running_loop().time()
        call.start(_STREAM_LINES + self._id_lines, data)
        self.started = True
        return not call.is_blocked

    def put_comments(self, data: bytes) -> bool:
        return not self.started or self._call.write(data)

    async def drain(self) -> None:
        await self._call.drain()

    def forget(self) -> None:
        self._unsent = b""

    async def end(self) -> None:
        self.ended = True
        await self._call.drain()
        self.end_now()

    def end_now(self) -> None:
        self.ended = True
        self._call.end()

    async def whole(self, status: int, content_type: bytes, body: bytes, headers: Iterable[Header] = ()) -> None:
        self.started = self.ended = True
        await self._call.drain()
        self._send(status, content_type, body, headers)

    def refuse(self, error: ApiError) -> None:
        """Send an error at once, as the whole answer."""
        self.started = self.ended = True
        self._send(error.status, JSON, self._error_body(error), retry_after(error))

    def _send(self, status: int, content_type: bytes, body: bytes, headers: Iterable[Header]) -> None:
        lines = b"content-type: %b\r\n%b%b" % (content_type, self._id_lines, header_lines(headers))
        self._call.answer(status, lines, body)

    async def error(self, error: ApiError) -> None:
        """Send an error: as a whole answer or, if the stream has begun, as an event.

        A client that does not read is dropped.
        """
        call = self._call
        if call.answered:
            return
        if not self.ended:  # if it has ended, its last write was cut off
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WRITE_S):
                    await self._tell(error)
        if not call.answered:
            call.drop()
            await asyncio.sleep(0)  # the server then notes the end of the connection before the end of the answer

    async def _tell(self, error: ApiError) -> None:
        if self.started:
            name = b"event: error\n" if self.names_events else b""
            await self.write(name + error.to_sse(self._request_id))
            await self.end()
            return
        await self.whole(error.status, JSON, self._error_body(error), retry_after(error))

    def _error_body(self, error: ApiError) -> bytes:
        """An error as the whole answer."""
        return error.to_json(self._request_id)
