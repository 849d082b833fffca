"""A connection that is not there, and the requests on it. Not a test."""

from __future__ import annotations

import asyncio
from typing import Any

from baton_serve.core.net.late_writes import LateWrites
from baton_serve.core.net.served.call import Calls, HttpCall
from baton_serve.core.net.served.flow import Flow


class _Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.sent = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass


class NoCalls:
    """Nobody answers; a client that leaves is noted by its call alone."""

    urls: frozenset[bytes] = frozenset()

    def begin(self, call: HttpCall) -> None: ...
    def wait(self, call: HttpCall) -> None: ...
    def took(self, call: HttpCall, num_bytes: int) -> None: ...
    def serve(self, call: HttpCall) -> None: ...
    def gone(self, call: HttpCall) -> None: ...


class FakeConnection:
    """``Connected``: one request at a time, which the test feeds."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.transport: Any = _Transport()
        self.flow = Flow(self.transport)
        self.tasks: set[asyncio.Task[None]] = set()
        self.has_deadline = False
        self.late_writes: LateWrites | None = None
        self.num_answers = 0

    def on_response_complete(self) -> None:
        self.num_answers += 1

    @property
    def sent(self) -> bytes:
        return bytes(self.transport.sent)

    def ask(self, body: bytes | None = b"{}", path: str = "/here", **headers: str) -> HttpCall:
        """A request. Without a body a part of one has come; then, as on a real one, the connection does not stay if it
        is answered now.
        """
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        call = HttpCall(self, self.calls, path, named, keep_alive=body is not None, waits_for_100=False)
        if body is None:
            call.begin()
            call.feed(b"{")
            call.wait()
            return call
        call.feed(body)
        call.complete()
        call.begin()
        return call

    async def until_idle(self) -> None:
        """No task is left."""
        while self.tasks:
            await asyncio.wait(self.tasks)
            await asyncio.sleep(0)
