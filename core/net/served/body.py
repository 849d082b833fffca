"""Request bodies: bounded in bytes and in time, each by itself and all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Self

from baton_serve.core.protocol.errors import (
    ApiError,
    BadRequestError,
    BodyTimeoutError,
    PayloadTooLargeError,
    RateLimitError,
    UnavailableError,
    UnsupportedMediaError,
)

if TYPE_CHECKING:
    from starlette.types import Message, Receive

#: 2**64 has twenty digits, and ``int`` refuses thousands of them.
_MAX_DIGITS: Final = 20
#: Values of ``Content-Encoding`` that change nothing.
_PLAIN: Final = frozenset({b"", b"identity"})
#: Methods for whose requests a body has no meaning.
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: Seconds for ``Retry-After``: most bodies have arrived in less.
_RETRY_AFTER_S: Final = 1.0


class ClientGoneError(Exception):
    """The client closed the connection before its whole request had arrived."""


class BodyBudget:
    """Bytes of all bodies that a process holds at once."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Take ``num_bytes`` of the budget. Raises RateLimitError if fewer are left."""
        if self.used_bytes + num_bytes > self._limit_bytes:
            raise RateLimitError("Too many bytes of request bodies are held.", retry_after_s=_RETRY_AFTER_S)
        self.used_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Return ``num_bytes`` to the budget."""
        self.used_bytes -= num_bytes


class BodyReader:
    """Reads bodies. ``len()`` is the number of bodies that are arriving; each takes memory and a connection."""

    def __init__(self, limit_bytes: int, budget: BodyBudget) -> None:
        """``limit_bytes`` is for one body, ``budget`` for all together."""
        self.limit_bytes = limit_bytes
        self.budget = budget
        self._timeouts: set[asyncio.Timeout] = set()
        self._closing = False

    def __len__(self) -> int:
        return len(self._timeouts)

    async def read(
        self, headers: Mapping[bytes, bytes], receive: Receive, timeout_s: float, on_part: Callable[[bytes], None]
    ) -> None:
        """Call ``on_part``, which may raise, with each part. Raises as ``Body.read``."""
        self.check_announced(headers)
        try:
            async with asyncio.timeout(timeout_s) as timeout:
                self._timeouts.add(timeout)
                try:
                    has_more = True
                    while has_more:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            raise ClientGoneError
                        on_part(message.get("body", b""))
                        has_more = message.get("more_body", False)
                finally:
                    self._timeouts.discard(timeout)
        except TimeoutError:
            raise (shutting_down() if self._closing else too_late()) from None

    def close(self) -> None:
        """End the reads that are under way with UnavailableError; later reads work as usual."""
        self._closing = True
        now_s = asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            if not timeout.expired():
                timeout.reschedule(now_s)

    def check_announced(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise UnsupportedMediaError for a compressed body, and BadRequestError or PayloadTooLargeError for the size
        that the head announces.
        """
        if b"content-encoding" in headers and headers[b"content-encoding"].lower() not in _PLAIN:
            raise UnsupportedMediaError(
                "No Content-Encoding is supported here: send the body as it is, without compression.",
                param="content-encoding",
            )
        announced = headers.get(b"content-length", b"0")
        if len(announced) > _MAX_DIGITS or not announced.isdigit():  # for bytes, it accepts only ASCII digits
            raise BadRequestError("Invalid content-length.")
        if int(announced) > self.limit_bytes:
            raise self._too_large()

    def take(self, num_before: int, num_bytes: int) -> None:
        """Count that many more bytes of a body of which ``num_before`` have come. Raises PayloadTooLargeError and
        RateLimitError.
        """
        if num_before + num_bytes > self.limit_bytes:
            raise self._too_large()
        self.budget.take(num_bytes)

    def _too_large(self) -> PayloadTooLargeError:
        return PayloadTooLargeError(f"The request body is larger than {self.limit_bytes} bytes.")


def too_late() -> BodyTimeoutError:
    """The error for a body that did not come in time."""
    return BodyTimeoutError("The request's body did not come in time.")


def shutting_down() -> UnavailableError:
    """The error for a body that was still coming when the server stopped."""
    return UnavailableError("The server is shutting down.", code="shutting_down")


class Body:
    """The body of one request. Its bytes count in the budget until the ``with`` ends."""

    __slots__ = ("_asked", "_num_bytes", "_parts", "_reader", "error")

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._asked = False
        #: The error that ``when_asked`` has raised, if any.
        self.error: ApiError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.budget.give_back(self._num_bytes)

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive, timeout_s: float) -> bytes:
        """Returns the whole body. Raises PayloadTooLargeError as soon as the size is known to be too large,
        RateLimitError, BodyTimeoutError, ClientGoneError when the client disconnects, and UnavailableError when the
        reader is closed.
        """
        await self._reader.read(headers, receive, timeout_s, self._add)
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def when_asked(
        self,
        method: str,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        timeout_s: float,
        check: Callable[[bytes], None],
    ) -> Receive:
        """Returns a ``receive`` for a framework: the body is read, as a whole, only when the route asks for it, and has
        to pass ``check``.

        An error is raised in the route, and kept as ``error``. A request whose ``method`` has no body gets none: if one
        comes nevertheless, the connection throws it away.
        """

        async def asked() -> Message:
            if self._asked:
                return await receive()
            self._asked, body = True, b""
            try:
                if method not in _WITHOUT_BODY:
                    body = await self.read(headers, receive, timeout_s)
                    check(body)
            except ClientGoneError:
                return {"type": "http.disconnect"}
            except ApiError as error:
                self.error = error
                raise
            return {"type": "http.request", "body": body, "more_body": False}

        return asked

    def _add(self, part: bytes) -> None:
        self._reader.take(self._num_bytes, len(part))
        self._num_bytes += len(part)
        self._parts.append(part)
