"""The client of one request, as those see it who answer."""

from __future__ import annotations

from typing import Final

from baton_serve.core.net.answers import EVENT_STREAM, JSON, Header, header_lines, retry_after
from baton_serve.core.net.served.call import HttpCall
from baton_serve.core.protocol.errors import ApiError

_STREAM_LINES: Final = header_lines(EVENT_STREAM)
_JSON_LINES: Final = header_lines([(b"content-type", JSON)])


class Client:
    """Sends one answer. What is sent after the client has left, or after the last part, is dropped."""

    __slots__ = ("_call", "_id_line", "_request_id")

    def __init__(self, call: HttpCall, request_id: str) -> None:
        self._call = call
        self._request_id = request_id
        self._id_line = b"x-request-id: %b\r\n" % request_id.encode()

    @property
    def started(self) -> bool:
        """Whether the headers were sent, so that an error can only be sent as an event."""
        return self._call.response_started

    @property
    def gone(self) -> bool:
        """Whether the client left before the whole answer was passed to the transport."""
        return self._call.disconnected and not self._call.response_complete

    async def send_part(self, data: bytes) -> None:
        """Send a part of a stream; the first one, which may be empty, sends the headers as well. Waits if the client
        reads too slowly.
        """
        self._write(data)
        if self._call.is_blocked:
            await self._call.drain()

    def send_last(self, data: bytes) -> None:
        self._write(data)
        self._call.end()

    def send_json(self, status: int, data: bytes, *extra: Header) -> None:
        self._call.answer(status, _JSON_LINES + self._id_line + header_lines(extra), data)

    def send_error(self, error: ApiError) -> None:
        """Send an error: JSON before the first byte of the answer, the last event of the stream after it.

        Does nothing after the last part, because the answer is complete.
        """
        if self._call.answered:
            return
        if self.started:
            self.send_last(error.to_sse(self._request_id))
        else:
            self.send_json(error.status, error.to_json(self._request_id), *retry_after(error))

    def _write(self, data: bytes) -> None:
        if self.started:
            self._call.write(data)
        else:
            self._call.start(_STREAM_LINES + self._id_line, data)
