"""What goes back to the client: one writer over ASGI's ``send``. Headers wait for the first content.

A client that does not read makes every write wait. The end of a request does not wait with it: ``error`` waits for
``LAST_WRITE_S`` at most, and then drops the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from core.net.answers import EVENT_STREAM, JSON, retry_after
from router.request.client_id import HEADER as CLIENT_ID

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Send

    from core.protocol.errors import ApiError

#: How long the last words may wait for a client that does not read, seconds.
LAST_WRITE_S = 1.0


class ClientReply:
    """One answer. ``first_content_s`` is when its first content left, on the loop's clock; None before."""

    __slots__ = (
        "_complete",
        "_drop",
        "_id_headers",
        "_request_id",
        "_send",
        "_unsent",
        "client_id",
        "ended",
        "first_content_s",
        "started",
    )

    def __init__(self, send: Send, request_id: str, drop: Callable[[], None], client_id: str = "") -> None:
        """``drop`` closes the client's connection at once, whatever is still to be sent there.

        ``client_id`` is what the client calls the request, if it does.
        """
        self._send = send
        self._drop = drop
        self._request_id = request_id
        self.client_id = client_id
        theirs = ((CLIENT_ID, client_id.encode("ascii")),) if client_id else ()
        self._id_headers = ((b"x-request-id", request_id.encode("ascii")), *theirs)
        self._unsent = b""
        self.started = False
        #: The last write has begun; ``_complete``: it was also taken.
        self.ended = False
        self._complete = False
        self.first_content_s: float | None = None

    async def write(self, data: bytes, *, content: bool = True) -> None:
        """Send part of a stream.

        What comes without ``content`` at the beginning is kept until the first content comes.
        """
        if not self.started:
            data = self._unsent + data
            if not content:
                self._unsent = data
                return
            self.first_content_s = asyncio.get_running_loop().time()
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM, *self._id_headers]}
            )
            self.started = True
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def forget(self) -> None:
        """Drop what is kept for the first content. Only before the answer has begun."""
        self._unsent = b""

    async def end(self) -> None:
        """The stream is complete."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        self._complete = True

    async def whole(
        self, status: int, content_type: bytes, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        """Send the answer in one piece."""
        self.started = self.ended = True
        self.first_content_s = asyncio.get_running_loop().time()
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", content_type),
                    (b"content-length", b"%d" % len(body)),
                    *self._id_headers,
                    *headers,
                ],
            }
        )
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self._complete = True

    async def error(self, error: ApiError) -> None:
        """Send an error in the shape that is still possible: a whole answer or an event.

        A client that does not read is dropped.
        """
        if self._complete:
            return
        if not self.ended:  # otherwise its last write was cut off
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WRITE_S):
                    await self._tell(error)
        if not self._complete:
            self._drop()
            await asyncio.sleep(0)  # lets the end of the connection be noted before the end of the answer

    async def _tell(self, error: ApiError) -> None:
        if self.started:
            await self.write(error.to_sse(self._request_id))
            await self.end()
            return
        await self.whole(error.status, JSON, error.to_json(self._request_id), retry_after(error))
