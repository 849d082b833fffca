"""Writes the answer to the client, over ASGI's ``send``. Headers are sent only with the first content.

A client that does not read blocks every write, but not the end of its request: ``error`` waits for ``LAST_WRITE_S``
at most, and then drops the connection.
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

#: Seconds that the final error may wait for a client that does not read.
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
        "names_events",
        "started",
    )

    def __init__(self, send: Send, request_id: str, drop: Callable[[], None], client_id: str = "") -> None:
        """``drop`` closes the client's connection at once, whatever is still to be sent there.

        ``client_id``: the client's own id of the request; empty if it gave none.
        """
        self._send = send
        self._drop = drop
        self._request_id = request_id
        self.client_id = client_id
        theirs = ((CLIENT_ID, client_id.encode("ascii")),) if client_id else ()
        self._id_headers = ((b"x-request-id", request_id.encode("ascii")), *theirs)
        self._unsent = b""
        #: Whether the events of its stream have names; an error is then called ``error``.
        self.names_events = False
        self.started = False
        #: Whether the last write has begun; ``_complete``: whether it has also finished.
        self.ended = False
        self._complete = False
        self.first_content_s: float | None = None

    async def write(self, data: bytes, *, content: bool = True) -> None:
        """Send part of a stream.

        Data without ``content`` is kept until the first content comes.
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
        """Drop the data kept until the first content. Only before the answer has begun."""
        self._unsent = b""

    async def end(self) -> None:
        """Complete the stream."""
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
        """Send an error: as a whole answer or, if the stream has begun, as an event.

        A client that does not read is dropped.
        """
        if self._complete:
            return
        if not self.ended:  # if it has ended, its last write was cut off
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WRITE_S):
                    await self._tell(error)
        if not self._complete:
            self._drop()
            await asyncio.sleep(0)  # the server then notes the end of the connection before the end of the answer

    async def _tell(self, error: ApiError) -> None:
        if self.started:
            name = b"event: error\n" if self.names_events else b""
            await self.write(name + error.to_sse(self._request_id))
            await self.end()
            return
        await self.whole(error.status, JSON, error.to_json(self._request_id), retry_after(error))
