"""Requests that are answered by ASGI: a task of each runs the application."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from baton_serve.core.net.answers import CHUNKED, CLOSE, CONTINUE, LAST_CHUNK, STATUS_LINES
from baton_serve.core.net.served.flow import MAX_UNREAD_BYTES, Flow
from baton_serve.core.protocol.excerpts import excerpt

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

_LOGGER: Final = logging.getLogger("baton.net")
#: What a name and a value of a header may not have: RFC 9110, 5.1 and 5.5.
_NOT_IN_NAMES: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]|^$")
_NOT_IN_VALUES: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
#: Headers about the connection, which the cycle writes itself.
_OURS: Final = frozenset({b"connection", b"transfer-encoding"})
_FAILED: Final = b"Internal Server Error"


class AsgiCycle:
    """One request and its answer. The connection calls it as it calls an ``HttpCall``."""

    def __init__(
        self,
        app: ASGIApp,
        tasks: set[asyncio.Task[None]],
        scope: Scope,
        transport: asyncio.Transport,
        flow: Flow,
        on_response: Callable[[], None],
        *,
        keep_alive: bool,
        waits_for_100: bool,
    ) -> None:
        """``tasks`` has the task that runs ``app``, until it ends. ``on_response`` is called when the answer is
        complete.
        """
        self._app = app
        self._tasks = tasks
        self._scope = scope
        #: The connection changes it while the body comes.
        self.transport = transport
        self._flow = flow
        self._on_response = on_response
        self.keep_alive = keep_alive
        self._waits_for_100 = waits_for_100
        self._disconnected = False
        self._body = bytearray()
        self._more_body = True
        #: Set when ``receive`` may have something new.
        self._news = asyncio.Event()
        self.response_started = False
        self.response_complete = False
        self._has_body = True
        self._is_chunked = False
        #: Bytes of the answer that are still to be sent; None: its length is not known.
        self._left: int | None = None

    def begin(self) -> None:
        """The requests before it on its connection are answered."""
        task = asyncio.get_running_loop().create_task(self._run())
        task.add_done_callback(self._tasks.discard)
        self._tasks.add(task)

    def feed(self, part: bytes) -> None:
        """A piece of the body. No more is read while the application has too much of it."""
        if self.response_complete:
            return
        self._body += part
        if len(self._body) > MAX_UNREAD_BYTES:
            self._flow.pause_reading()
        self._news.set()

    def complete(self) -> None:
        """The body is complete."""
        if not self.response_complete:
            self._more_body = False
            self._news.set()

    def wait(self) -> None:
        """More of the body is to come. Nothing is to be done: the application reads it when it wants it."""

    def gone(self) -> None:
        """The connection is lost, or what follows on it is not HTTP."""
        if not self.response_complete:
            self._disconnected = True
        self._news.set()

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        except asyncio.CancelledError as cancelled:
            self._fail("was cancelled", cancelled)
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, it is logged, and ends this answer alone)
            self._fail("met a bug", error)
        else:
            if not (self.response_complete or self._disconnected):
                self._fail("has not completed its answer")
        finally:
            self._on_response = _nothing

    def _fail(self, what: str, error: BaseException | None = None) -> None:
        """Log what the application did, and end an answer that will not be complete."""
        path = excerpt(self._scope["path"])
        _LOGGER.error("an application %s, at %s", what, path, exc_info=error)
        if self.response_complete:
            return
        if self.response_started:
            self.transport.close()
        elif not self._disconnected:
            self.keep_alive = False
            self._start(500, [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(_FAILED))])
            self._put(_FAILED, is_last=True)

    async def _receive(self) -> Message:
        if self._waits_for_100 and not self.transport.is_closing():
            self.transport.write(CONTINUE)
        self._waits_for_100 = False
        if not (self._disconnected or self.response_complete):
            self._flow.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self._disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def _send(self, message: Message) -> None:
        """Raises RuntimeError for what is no answer."""
        if not self._disconnected:
            await self._flow.drain()
        if self._disconnected:
            return
        expected = "http.response.body" if self.response_started else "http.response.start"
        if self.response_complete or message["type"] != expected:
            raise RuntimeError(f"the application has sent {message['type']} at the wrong time")
        if self.response_started:
            self._put(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            self._start(message["status"], message.get("headers", ()))

    def _start(self, status: int, headers: Any) -> None:
        self._waits_for_100 = False
        if status < 200:
            raise RuntimeError(f"{status} is no status of an answer")
        head = [STATUS_LINES[status]]
        for name, value in headers:
            if _NOT_IN_NAMES.search(name) or _NOT_IN_VALUES.search(value):
                raise RuntimeError(f"a header of an answer has characters that it may not have: {name!r}")
            lower = name.lower()
            if lower == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
            if lower in _OURS:
                continue
            if lower == b"content-length":
                if not value.isdigit():
                    raise RuntimeError(f"a length of an answer is no number: {value!r}")
                self._left = int(value)
            head += (lower, b": ", value, b"\r\n")
        self._has_body = self._scope["method"] != "HEAD" and status not in (204, 304)
        # Clients of HTTP/1.0 know no chunks: a stream ends with its connection.
        if not self._has_body:
            self._left = None
        elif self._left is None and self._scope["http_version"] != "1.0":
            self._is_chunked = True
            head.append(CHUNKED)
        if not self.keep_alive:
            head.append(CLOSE)
        head.append(b"\r\n")
        self.response_started = True
        self.transport.write(b"".join(head))

    def _put(self, body: bytes, *, is_last: bool) -> None:
        if not self._has_body:
            body = b""
        if self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (is_last and self._left):
                raise RuntimeError("an answer has not as many bytes as it has said")
        if self._is_chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self.transport.write(body + LAST_CHUNK if is_last else body)
        else:
            self.transport.write(body)
        if is_last:
            self.response_complete = True
            self._news.set()
            if not self.keep_alive:
                self.transport.close()
            self._on_response()


def _nothing() -> None:
    """Takes the place of a bound method at the end of a request, so that the request does not keep its connection."""
