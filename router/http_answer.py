"""One HTTP answer as it comes in: the ``Answer`` port, fed by a connection."""

from __future__ import annotations

import asyncio
from typing import Protocol

from router.upstream import ConnectionLost, LegError, LegTimeout

#: Bytes of an answer that may wait for the client before the worker's connection is paused.
HIGH_WATER_BYTES = 256 << 10


class Source(Protocol):
    """The connection that an answer comes from."""

    def abort(self) -> None:
        """Close now."""

    def pause(self) -> None:
        """Read no more for now."""

    def resume(self) -> None:
        """Read again."""


class HttpAnswer:
    """One answer; outlives the connection's part in it."""

    __slots__ = (
        "_connection",
        "_error",
        "_num_bytes",
        "_parts",
        "_waiter",
        "complete",
        "content_type",
        "retry_after",
        "started",
        "status",
    )

    def __init__(self, connection: Source) -> None:
        self._connection: Source | None = connection
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._error: LegError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.status = 0
        self.content_type = b""
        self.retry_after = b""
        #: At least one byte of the answer has come.
        self.started = False
        self.complete = False

    async def headers(self) -> None:
        """Wait until the status is known."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def chunk(self, timeout_s: float | None = None) -> bytes:
        if timeout_s is not None and not self._parts:
            timer = asyncio.get_running_loop().call_later(timeout_s, self.fail, LegTimeout("nothing came in time"))
            try:
                return await self.chunk()
            finally:
                timer.cancel()
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            await self._wait()
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if self._num_bytes > HIGH_WATER_BYTES and self._connection is not None:
            self._connection.resume()
        self._num_bytes = 0
        return data

    async def read(self, limit_bytes: int, timeout_s: float) -> bytes:
        if not self.complete:
            timer = asyncio.get_running_loop().call_later(timeout_s, self.fail, LegTimeout("the answer took too long"))
            try:
                return await self._read(limit_bytes)
            finally:
                timer.cancel()
        return await self._read(limit_bytes)

    async def _read(self, limit_bytes: int) -> bytes:
        parts = []
        total = 0
        while part := await self.chunk():
            parts.append(part)
            total += len(part)
            if total > limit_bytes:
                self.close()
                raise ConnectionLost("the answer was larger than allowed")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def _wait(self) -> None:
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- from the connection

    def feed(self, data: bytes) -> None:
        self._parts.append(data)
        self._num_bytes += len(data)
        if self._num_bytes > HIGH_WATER_BYTES and self._connection is not None:
            self._connection.pause()
        self._wake()

    def begin(self, status: int) -> None:
        self.status = status
        self._wake()

    def finish(self) -> None:
        self.complete = True
        self._connection = None
        self._wake()

    def fail(self, error: LegError) -> None:
        """No more will come. What has come stays readable only as part of a failed answer."""
        if self.complete or self._error is not None:
            return
        self._error = error
        self._parts.clear()
        self.close()
        self._wake()
