"""Request bodies: bounded in bytes and in time, wherever they go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocol.errors import BodyTimeoutError, PayloadTooLargeError, UnavailableError
from protocol.json_body import BodyLimits
from router.exit import ClientGone

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Message, Receive

#: What operators and other routers send: a few keys.
SMALL = BodyLimits(max_messages=0, max_values=4096)
#: Of a ``Content-Length``: 2**64 has as many. ``int`` refuses thousands.
MAX_LENGTH_DIGITS = 20


class BodyReader:
    """Reads bodies. ``len()`` is how many are under way: they take memory and a connection like requests that run."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._timeouts: set[asyncio.Timeout] = set()
        self._closing = False

    def __len__(self) -> int:
        return len(self._timeouts)

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive, timeout_s: float) -> bytes:
        """The whole body. Raises PayloadTooLargeError as soon as that is certain, BodyTimeoutError, ClientGone.

        UnavailableError when ``close`` is called meanwhile.
        """
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and (len(announced) > MAX_LENGTH_DIGITS or int(announced) > self._limit_bytes):
            raise self._too_large()
        timeout = asyncio.timeout(timeout_s)
        self._timeouts.add(timeout)
        try:
            async with timeout:
                return await self._parts(receive)
        except TimeoutError:
            if self._closing:
                raise UnavailableError("The router is shutting down.", code="shutting_down") from None
            raise BodyTimeoutError("The request's body did not come in time.") from None
        finally:
            self._timeouts.discard(timeout)

    def close(self) -> None:
        """End the reads that are under way; later ones go on as usual."""
        self._closing = True
        now_s = asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            if not timeout.expired():
                timeout.reschedule(now_s)

    async def _parts(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("gone while sending")
            part: bytes = message.get("body", b"")
            total += len(part)
            if total > self._limit_bytes:
                raise self._too_large()
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> PayloadTooLargeError:
        return PayloadTooLargeError(f"The request body is larger than {self._limit_bytes} bytes.")


def replay(body: bytes, receive: Receive) -> Receive:
    """``receive`` as if the body, which was read already, were still to come."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again
