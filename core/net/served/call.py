"""A request that a port answers without ASGI, for the routes where the framework's share would be the largest part.

There is no scope, no message and no task until the whole body is here. It differs from ``AsgiCycle`` in the interface
to the application. What the connection asks of either is the same, so it keeps both in the same places.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
from typing import Final, Protocol

from baton_serve.core.net.answers import CHUNKED, CLOSE, CONTINUE, LAST_CHUNK, STATUS_LINES
from baton_serve.core.net.late_writes import LateWrites, Writer, write
from baton_serve.core.net.served.flow import MAX_UNREAD_BYTES, Flow

#: The end of the head of a stream.
_CHUNKED: Final = CHUNKED + b"\r\n"
#: What stands before a chunk of so many bytes. A token's event is seldom larger.
_SIZE_LINES: Final = [b"%x\r\n" % size for size in range(4096)]


class Calls(Protocol):
    """Answers the calls of a port. Nothing here may raise: the parser is on the stack."""

    @property
    def urls(self) -> Set[bytes]:
        """The paths whose POST requests are calls."""

    def begin(self, call: HttpCall) -> None:
        """The head is complete, and maybe the body: answer now to refuse it."""

    def wait(self, call: HttpCall) -> None:
        """The body did not come together with its head. Called after the first ``took``."""

    def took(self, call: HttpCall, num_bytes: int) -> None:
        """That much more of the body has come: answer now to refuse it."""

    def serve(self, call: HttpCall) -> None:
        """The whole body is in ``call.parts``."""

    def gone(self, call: HttpCall) -> None:
        """The client is gone, and the answer is not complete."""


class Connected(Protocol):
    """The part of a connection that a call needs."""

    flow: Flow
    transport: asyncio.Transport
    has_deadline: bool

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The tasks that the port waits for when it stops."""

    @property
    def late_writes(self) -> LateWrites | None:
        """Where writes are put off; None: each goes out at once."""

    def on_response_complete(self) -> None:
        """The answer is complete: go on to the next request."""


class HttpCall(Writer):
    """One request and its answer. ``path`` is decoded; ``headers`` have lower-case names, the last of each counts."""

    __slots__ = (
        "_calls",
        "_connection",
        "_has_begun",
        "_is_late",
        "_is_next",
        "_unsent",
        "_waits_for_100",
        "answered",
        "disconnected",
        "headers",
        "keep_alive",
        "more_headers",
        "num_bytes",
        "parts",
        "path",
        "response_complete",
        "response_started",
        "transport",
        "whole",
    )

    def __init__(
        self,
        connection: Connected,
        calls: Calls,
        path: str,
        headers: dict[bytes, bytes],
        *,
        keep_alive: bool,
        waits_for_100: bool,
    ) -> None:
        self._connection = connection
        self._calls = calls
        #: Whether it is the one to be answered, whether its body did not come together with its head, and whether
        #: ``calls`` know of it.
        self._is_next = self._is_late = self._has_begun = False
        self._waits_for_100 = waits_for_100
        #: What is put off: a whole answer, or parts of a stream.
        self._unsent = b""
        self.path = path
        self.headers = headers
        #: Lines that every answer to it has in addition.
        self.more_headers = b""
        self.keep_alive = keep_alive
        #: The connection changes it while the body comes.
        self.transport: asyncio.Transport = connection.transport
        self.parts: list[bytes] = []
        self.num_bytes = 0
        #: Whether all of the body is here.
        self.whole = False
        self.disconnected = False
        self.response_started = False
        #: Whether the whole answer was written, and the connection can go on to its next request.
        self.response_complete = False
        #: Whether the whole answer is here. It may be written a turn of the loop later.
        self.answered = False

    # --- from the connection

    def begin(self) -> None:
        """The requests before it on its connection are answered."""
        self._is_next = True
        if self.whole or self._is_late:
            self._look()

    def feed(self, part: bytes) -> None:
        """A piece of the body."""
        self.parts.append(part)
        self.num_bytes += len(part)
        if self._has_begun:
            self._calls.took(self, len(part))
        elif self.num_bytes > MAX_UNREAD_BYTES and not self._is_next:  # reading goes on after the one before it
            self._connection.flow.pause_reading()

    def complete(self) -> None:
        """The body is complete."""
        self.whole = True
        if not self._has_begun:
            if self._is_next:
                self._look()
        elif not self.response_started:
            self._calls.serve(self)

    def wait(self) -> None:
        """The data that came with the head has ended before the body."""
        if self._is_late:
            return
        self._is_late = True
        if self._is_next:
            self._look()

    def _look(self) -> None:
        """Begin the call, but not yet at its head: a call that is refused after its whole body keeps the connection.

        A call that is gone, such as one whose chunks were no HTTP, never begins: ``calls`` would not hear of its end.
        """
        if self.disconnected:
            return
        self._has_begun = True
        calls = self._calls
        calls.begin(self)
        if self.num_bytes and not self.response_started:
            calls.took(self, self.num_bytes)
        if self.response_started:
            return
        if self.whole:
            calls.serve(self)
            return
        if self._waits_for_100 and not self.num_bytes:
            self.transport.write(CONTINUE)
        calls.wait(self)

    def gone(self) -> None:
        """The connection is lost, or what follows on it is not HTTP."""
        self.disconnected = True
        if not self.answered:
            self._calls.gone(self)

    @property
    def has_unsent(self) -> bool:
        """Whether something is put off."""
        return bool(self._unsent)

    # --- from the application

    def body(self) -> bytes:
        """The body; only once."""
        parts, self.parts = self.parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def drop_body(self) -> None:
        """Free what has come of the body."""
        self.parts.clear()

    def drop(self) -> None:
        """Close the connection at once, whatever is still to be sent."""
        self._connection.transport.abort()

    def leave_to_deadline(self) -> None:
        """Its answer has a deadline of its own: the connection is not closed because the client does not read."""
        self._connection.has_deadline = True

    def track(self, task: asyncio.Task[None]) -> None:
        """Have the port wait for the task when it stops, until ``untrack``."""
        self._connection.tasks.add(task)

    def untrack(self, task: asyncio.Task[None] | None) -> None:
        """The task is about to end."""
        if task is not None:
            self._connection.tasks.discard(task)

    @property
    def is_blocked(self) -> bool:
        """Whether ``drain`` would wait: the client does not read as fast as the answer comes."""
        return self._connection.flow.write_paused and not self.disconnected

    async def drain(self) -> None:
        """Wait until the client has read."""
        await self._connection.flow.drain()

    def answer(self, status: int, head: bytes, body: bytes) -> None:
        """Send the whole answer. ``head``: lines of headers, without those for length and connection."""
        if self.disconnected:
            return
        self.response_started = self.answered = True
        answer = b"%b%b%bcontent-length: %d\r\n%b\r\n%b" % (
            STATUS_LINES[status],
            head,
            self.more_headers,
            len(body),
            b"" if self.keep_alive else CLOSE,
            body,
        )
        if self.keep_alive:
            self._write(answer)
        else:  # while the body still comes, ``transport`` lingers when it is closed; a turn later it may be another one
            self._unsent = answer
            self.write_now()

    def write_now(self) -> None:
        """Write what is put off, unless it was written or the client has gone. Only after a whole answer the next
        request of its connection begins.
        """
        data, self._unsent = self._unsent, b""
        if data and not self.disconnected:
            self.transport.write(data)
            if self.answered:
                self._end()

    def start(self, head: bytes, data: bytes) -> None:
        """Begin to send a stream, with status 200. Without ``data`` only its head is sent."""
        if self.disconnected:
            return
        self.response_started = True
        self.transport.write(
            b"%b%b%b%b%b%b"
            % (
                STATUS_LINES[200],
                head,
                self.more_headers,
                b"" if self.keep_alive else CLOSE,
                _CHUNKED,
                b"%x\r\n%b\r\n" % (len(data), data) if data else b"",  # an empty chunk would be the end
            )
        )

    def write(self, data: bytes) -> bool:
        """Send a part of the stream. Returns False if the client does not read as fast: ``drain`` before the next."""
        if self.disconnected:
            return True
        if data:  # an empty chunk would be the end
            size = len(data)
            if size < len(_SIZE_LINES):
                self._write(_SIZE_LINES[size] + data + b"\r\n")  # for so few bytes cheaper than a join
            else:
                self._write(b"%x\r\n%b\r\n" % (size, data))
        return not self._connection.flow.write_paused

    def end(self) -> None:
        """Complete the stream."""
        if not self.disconnected:
            self.answered = True
            self._write(LAST_CHUNK)

    def _write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        self._unsent = data
        write(self, self._connection.late_writes)

    def _end(self) -> None:
        self.response_complete = self.answered = True
        if not self.keep_alive:
            self.transport.close()
        self._connection.on_response_complete()


class OldCall(HttpCall):
    """A call of a client of HTTP/1.0, which knows no chunks: its stream ends with its connection, so ``keep_alive`` is
    False.
    """

    __slots__ = ()

    def start(self, head: bytes, data: bytes) -> None:
        """As ``HttpCall.start``."""
        if not self.disconnected:
            self.response_started = True
            self.transport.write(b"%b%b%b%b\r\n%b" % (STATUS_LINES[200], head, self.more_headers, CLOSE, data))

    def write(self, data: bytes) -> bool:
        """As ``HttpCall.write``."""
        if self.disconnected:
            return True
        self.transport.write(data)
        return not self.is_blocked

    def end(self) -> None:
        """As ``HttpCall.end``."""
        if not self.disconnected:
            self._end()
