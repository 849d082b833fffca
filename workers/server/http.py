"""The ASGI of the hot endpoints: reads a header, sends an answer, and notices that the client has disconnected."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from core.net.answers import EVENT_STREAM, JSON, retry_after

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from starlette.types import Receive, Scope, Send

    from core.protocol.errors import ApiError


def raw_header(scope: Scope, name: bytes) -> bytes | None:
    """A request header, or None; ``name`` is in lower case."""
    return next((value for key, value in scope["headers"] if key == name), None)


def header(scope: Scope, name: bytes) -> str | None:
    """The request header as text, or None; ``name`` is in lower case."""
    raw = raw_header(scope, name)
    return None if raw is None else raw.decode("latin-1")


class ConnectedClient:
    """The client of one request, after its body was read; an asynchronous context manager.

    If the client disconnects, the ``async with`` block is cancelled, and the context manager absorbs that cancellation.
    Once ``send_last`` is called, the block is no longer cancelled; only ``gone`` is set.
    """

    def __init__(self, receive: Receive, send: Send, request_id: str) -> None:
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._id_header = (b"x-request-id", request_id.encode())
        self._task: asyncio.Task[Any] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._answering = False
        #: Whether the response headers were sent, so that an error can only be sent as an event.
        self.started = False
        #: Whether the client disconnected before the whole answer was passed to the transport.
        self.gone = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._watch = asyncio.create_task(self._listen(), name="client-watch")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._watch is not None and self._task is not None
        self._watch.cancel()
        if not self.gone or self._answering:
            return False
        return self._task.uncancel() == 0 and kind is asyncio.CancelledError

    async def start_stream(self) -> None:
        """Send the headers of an event stream."""
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM, self._id_header]})

    async def send_part(self, data: bytes) -> None:
        """Send a part of a stream; waits if the client reads too slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def send_last(self, data: bytes) -> None:
        """Send the last part of a stream."""
        self._answering = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def send_json(self, status: int, data: bytes, *extra: tuple[bytes, bytes]) -> None:
        """Send a whole answer."""
        headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(data)), self._id_header, *extra]
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send_last(data)

    async def send_error(self, error: ApiError) -> None:
        """Send an error: JSON before the first byte of the answer, the last event of the stream after it.

        Does nothing after the last part, because the answer is complete.
        """
        if self._answering:
            return
        if self.started:
            await self.send_last(error.to_sse(self._request_id))
        else:
            await self.send_json(error.status, error.to_json(self._request_id), *retry_after(error))

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if not self._answering and self._task is not None:
            self._task.cancel("the client left")
