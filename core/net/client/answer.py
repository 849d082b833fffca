"""One HTTP answer as it comes in, fed by a connection."""

from __future__ import annotations

import asyncio
import copy
import io
from collections.abc import Callable
from typing import Final, Protocol

from baton_serve.core.net.client.errors import AnswerTooLarge, CallError, CallTimeout, ConnectionLost
from baton_serve.core.net.deadlines import Timeout

#: Bytes of an answer that may wait for its reader before the connection is paused.
HIGH_WATER_BYTES: Final = 256 << 10


class Source(Protocol):
    """The connection that an answer comes from."""

    loop: asyncio.AbstractEventLoop

    def abort(self) -> None:
        """Close now."""

    def pause(self) -> None:
        """Pause reading."""

    def resume(self) -> None:
        """Resume reading."""

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timeout:
        """Call after ``delay_s`` seconds."""


class HttpAnswer:
    """One answer, which can be read even while its connection carries the next request. ``close`` it in every case."""

    __slots__ = (
        "_connection",
        "_error",
        "_framed",
        "_is_stopped",
        "_loop",
        "_num_bytes",
        "_num_pieces",
        "_parts",
        "_raised",
        "_take",
        "_waiter",
        "_watch",
        "complete",
        "content_type",
        "metadata",
        "retry_after",
        "started",
        "status",
    )

    def __init__(self, connection: Source) -> None:
        self._connection: Source | None = connection
        self._loop = connection.loop
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._error: CallError | None = None
        #: For ``pass_on``: the callback for pieces, what it raised, and whether it has returned False.
        self._take: Callable[[bytes], bool] | None = None
        self._raised: Exception | None = None
        self._is_stopped = False
        self._num_pieces = 0
        #: Done at the next news, if a reader waits.
        self._waiter: asyncio.Future[None] | None = None
        self._watch: _GapWatch | None = None
        self._framed = True
        self.status = 0
        #: Headers of the answer; empty if it has none of that name.
        self.retry_after = b""
        self.content_type = b""
        self.metadata = b""
        #: Whether the first byte of the answer has come.
        self.started = False
        self.complete = False

    async def headers(self) -> None:
        """Wait until the status is known."""
        while not self.status:
            if self._error is not None:
                raise _anew(self._error)
            if self.complete:
                raise ConnectionLost("the answer ended before it began")
            await self._news()

    async def chunk(self) -> bytes:
        """Returns the bytes that have come since the last call, and waits if there are none. Empty: the answer is
        complete.

        Raises ConnectionLost, also when the answer ends early, and CallTimeout; bytes that came before the error are
        returned first.
        """
        while not self._parts:
            if self._error is not None:
                raise _anew(self._error)
            if self.complete:
                return b""
            await self._news()
        return self._take_parts()

    async def pass_on(self, take: Callable[[bytes], bool]) -> bool:
        """Call ``take`` with each piece in the very turn of the loop in which it comes, without waking a task for it.

        Returns True when the answer is complete, and False when ``take`` has returned False: it takes no more for now.
        Raises what ``take`` raises, and as ``chunk``.
        """
        while True:
            if self._parts and not take(self._take_parts()):
                return False
            if self._error is not None:
                raise _anew(self._error)
            if self.complete:
                return True
            self._take, self._is_stopped = take, False
            try:
                await self._news()
            finally:
                self._take = None
            if self._raised is not None:
                raise self._raised
            if self._is_stopped:
                return False

    def _take_parts(self) -> bytes:
        """What has come since the last call."""
        data = b"".join(self._parts)  # no copy of a single part
        self._parts.clear()
        if self._num_bytes > HIGH_WATER_BYTES and self._connection is not None:
            self._connection.resume()
        self._num_bytes = 0
        return data

    async def read(self, limit_bytes: int, timeout_s: float | None, *, begins: bool = False) -> bytes:
        """Returns the rest of the body. Raises ConnectionLost, AnswerTooLarge and CallTimeout.

        Raises ConnectionLost also for a 200 that ends only because the connection closed: it may have been cut off.
        ``begins``: of a longer body returns the beginning, which has more than ``limit_bytes``.
        """
        if self.complete and self._framed and self._num_bytes <= limit_bytes:  # a short one comes with its head
            return self._take_parts()
        timer = None if timeout_s is None else self.fail_after(timeout_s)
        try:
            return await self._read(limit_bytes, begins)
        finally:
            if timer is not None:
                timer.cancel()

    def fail_after(self, timeout_s: float) -> Timeout | None:
        """Fail with CallTimeout then, however many pieces come, unless the returned timeout is cancelled.

        None: the whole answer has come.
        """
        return None if self._connection is None else self._connection.call_later(timeout_s, self._slow)

    async def _read(self, limit_bytes: int, begins: bool) -> bytes:
        first = await self.chunk()
        more = io.BytesIO()  # a list of small pieces would take many times their bytes
        total = len(first)
        while total <= limit_bytes and (part := await self.chunk()):
            more.write(part if total > len(first) else first + part)
            total += len(part)
        if total > limit_bytes and not begins:
            self.close()
            raise AnswerTooLarge("the answer was larger than allowed")
        if self.complete and not self._framed and self.status == 200:
            raise ConnectionLost("nothing tells whether the answer is whole")
        return more.getvalue() if total > len(first) else first

    def watch(self, gap_s: float) -> None:
        """From now on, ``chunk`` and ``pass_on`` raise CallTimeout when nothing has come for ``gap_s``, or at most 1.25
        times as long.
        """
        if self._connection is not None:
            self._watch = _GapWatch(self, self._connection, gap_s)

    def disregard_piece(self) -> None:
        """Called by the reader that has just taken a piece: for ``watch`` nothing has come."""
        self._num_pieces -= 1

    def waiting(self) -> int | None:
        """Returns a number that stands for the piece that a reader waits for; None: no reader waits."""
        waiter = self._waiter
        return None if waiter is None or waiter.done() else self._num_pieces  # a reader may have been cancelled

    def close(self) -> None:
        """Close the connection unless the answer is complete. Never raises, may be called twice."""
        if self._watch is not None:
            self._end_watch()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def fail_unless_begun(self) -> None:
        """Fail, unless the status has come: it may have come in this very turn of the loop."""
        if not self.status:
            self.fail(CallTimeout("the worker did not answer"))

    def _slow(self) -> None:
        self.fail(CallTimeout("the answer took too long"))

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _news(self) -> asyncio.Future[None]:
        waiter = self._waiter = self._loop.create_future()
        return waiter

    # --- from the connection

    def wake(self) -> None:
        """Wake the reader after ``feed``, ``finish`` and a new ``status``: once for all that came together."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def feed(self, data: bytes) -> bool:
        """Give the reader a piece of the body: all that has come at once. It may come just after ``finish``.

        Returns whether the reader is to be woken.
        """
        self._num_pieces += 1
        take = self._take
        if take is None:
            self._parts.append(data)
            self._num_bytes += len(data)
            if self._num_bytes > HIGH_WATER_BYTES and self._connection is not None:
                self._connection.pause()
            return True
        try:
            if take(data):
                return False
            self._is_stopped = True
        except Exception as error:  # noqa: BLE001 (raised in ``pass_on``)
            self._raised = error
        self._take = None
        return True

    def finish(self, *, framed: bool = True) -> None:
        """Note that the whole answer has come. ``framed``: the answer itself marked its end, not only the closed
        connection.
        """
        self._framed = framed
        self.complete = True
        self._connection = None
        if self._watch is not None:
            self._end_watch()

    def fail(self, error: CallError) -> None:
        """Note that no more will come. The reader still gets what has come, and then the error."""
        if self.complete or self._error is not None:
            return
        self._error = error
        self.close()
        self.wake()


def _anew(error: CallError) -> CallError:
    """The same error, to be raised. If the answer kept the one that is raised, the answer would keep the frames of its
    reader, which keep the answer.
    """
    fresh = copy.copy(error)
    fresh.__cause__ = error.__cause__
    return fresh


class _GapWatch:
    """Fails an answer whose reader waits too long for one piece. A piece costs nothing.

    Four times in ``gap_s`` it looks whether the reader still waits for the same piece as before. A reader that does not
    wait, for example because its own client is slow, is no fault of the server.
    """

    __slots__ = ("_answer", "_connection", "_gap_s", "_since_s", "_timer", "_waiting")

    def __init__(self, answer: HttpAnswer, connection: Source, gap_s: float) -> None:
        self._answer = answer
        self._connection = connection
        self._gap_s = gap_s
        self._since_s = 0.0
        self._waiting: int | None = None
        self._look()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        waiting = self._answer.waiting()
        if waiting is None or waiting != self._waiting:
            self._waiting, self._since_s = waiting, loop.time()
        elif loop.time() - self._since_s >= self._gap_s:
            self._answer.fail(CallTimeout("nothing more came in time"))
            return
        self._timer = self._connection.call_later(self._gap_s / 4, self._look)

    def cancel(self) -> None:
        self._timer.cancel()
