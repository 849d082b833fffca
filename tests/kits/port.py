"""A port with a small application behind it, and a client that writes bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

from baton_serve.core.net.served.call import HttpCall
from baton_serve.core.net.served.config import PortConfig
from baton_serve.core.net.served.port import HttpPort
from baton_serve.core.net.sockets import bind, port_of

#: Whether ports answer POST requests as calls; the others are ASGI in any case.
as_calls = ContextVar("as_calls", default=False)
HEAD = b"POST /echo HTTP/1.1\r\nhost: x\r\n"
#: What ``/parts`` is answered with, one after the other.
PARTS = (b"one", b"second part", b"3")
GET = b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n"


class App:
    """Answers how many bytes it was sent; ``/early`` without reading them, ``/held`` when ``go_on`` is set.

    ``/parts`` is answered by a stream of ``PARTS``.
    ``/long`` is answered without end, as long as the connection is there; ``/timed``, too, by a deadline of its own,
    and only as a call.
    """

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.go_on = asyncio.Event()
        self.num_bytes = 0
        #: How often an endless answer has waited for its client.
        self.num_drained = 0
        #: Instead of the number.
        self.answer = b""
        self._asked = asyncio.Condition()
        #: Requests that came as calls; those whose body came later than its head, and those whose client left.
        self.calls: list[HttpCall] = []
        self.waited: list[HttpCall] = []
        self.gone_calls: list[HttpCall] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        async with self._asked:
            self._asked.notify_all()
        if scope["path"] != "/early":
            await self._read(receive)
        if scope["path"] == "/long":
            await _answer_without_end(receive, send)
            return
        if scope["path"] == "/parts":
            await _answer_in_parts(send)
            return
        if scope["path"] == "/held":
            await self.go_on.wait()
        body = self.answer or b"%d" % self.num_bytes
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    # --- the same, as calls

    urls = frozenset({b"/echo", b"/early", b"/held", b"/parts", b"/long", b"/timed"})

    def begin(self, call: HttpCall) -> None:
        self.calls.append(call)
        self.scopes.append({"path": call.path, "headers": list(call.headers.items())})
        call.track(asyncio.create_task(self._tell(call)))
        if call.path == "/early":
            self._answer(call)

    def wait(self, call: HttpCall) -> None:
        self.waited.append(call)

    def took(self, _call: HttpCall, num_bytes: int) -> None:
        self.num_bytes += num_bytes

    def serve(self, call: HttpCall) -> None:
        if call.path == "/timed":
            call.leave_to_deadline()
        if call.path == "/echo":
            self._answer(call)
        else:
            call.track(asyncio.create_task(self._later(call)))

    def gone(self, call: HttpCall) -> None:
        self.gone_calls.append(call)

    def _answer(self, call: HttpCall) -> None:
        call.answer(200, b"", self.answer or b"%d" % self.num_bytes)

    async def _tell(self, call: HttpCall) -> None:
        async with self._asked:
            self._asked.notify_all()
        call.untrack(asyncio.current_task())

    async def _later(self, call: HttpCall) -> None:
        if call.path == "/held":
            await self.go_on.wait()
            self._answer(call)
        elif call.path == "/parts":
            call.start(b"", PARTS[0])
            for part in PARTS[1:]:
                call.write(part)
            call.end()
        else:
            call.start(b"", b"x" * (1 << 16))
            while not call.disconnected:
                if not call.write(b"x" * (1 << 16)):
                    self.num_drained += 1
                    await call.drain()
                await asyncio.sleep(0)
        call.untrack(asyncio.current_task())

    async def until_asked(self, num_requests: int) -> None:
        async with self._asked:
            await self._asked.wait_for(lambda: len(self.scopes) >= num_requests)

    async def _read(self, receive: Receive) -> None:
        more = True
        while more:
            message = await receive()
            self.num_bytes += len(message.get("body", b""))
            more = message.get("more_body", False)


async def _answer_in_parts(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in PARTS:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _answer_without_end(receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    gone = asyncio.ensure_future(receive())
    while not gone.done():
        await send({"type": "http.response.body", "body": b"x" * (1 << 16), "more_body": True})
        await asyncio.sleep(0)


@dataclass
class Answer:
    """One answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """Of an error in our shape."""
        return str(json.loads(self.body)["error"]["code"])


class Caller:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Raises ConnectionError once nobody reads any more."""
        self.writer.write(data)
        await self.writer.drain()

    async def send_pieces(self, pieces: Iterable[bytes]) -> None:
        """Each comes by itself."""
        for piece in pieces:
            await self.send(piece)
            await turns(20)

    async def answer(self) -> Answer:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
        body = await self.reader.readexactly(int(headers["content-length"]))
        return Answer(int(lines[0].split()[1]), headers, body)

    async def closed(self) -> None:
        """Until the other side has closed; fails if it says anything more."""
        with contextlib.suppress(ConnectionError):
            assert await self.reader.read() == b""


async def turns(num: int) -> None:
    """So many turns of the loop, which the port and its callers share: on a busy machine a time may have few."""
    for _ in range(num):
        await asyncio.sleep(0)


async def all_said(caller: Caller, pieces: Iterable[bytes], *, leaves: bool = True) -> bytes:
    """Send bytes in these pieces; returns all that is answered, up to the end of the connection, which has to come.

    ``leaves``: the caller closes its half then.
    """
    try:
        await caller.send_pieces(pieces)
        if leaves:
            await turns(500)  # the port ends what is not answered when its client leaves
            caller.writer.write_eof()
        return await caller.reader.read()
    except OSError:  # it has closed
        return b""


@dataclass
class Served:
    """A port and its application."""

    app: App
    port: HttpPort
    number: int
    callers: list[Caller] = field(default_factory=list)

    async def connect(self) -> Caller:
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self.number))
        self.callers.append(caller)
        return caller

    async def send(self, data: bytes) -> Caller:
        """On a connection of its own."""
        caller = await self.connect()
        await caller.send(data)
        return caller

    async def ask(self, data: bytes) -> tuple[Caller, Answer]:
        """The same, up to the answer."""
        caller = await self.send(data)
        return caller, await caller.answer()


@contextlib.asynccontextmanager
async def serving(
    config: PortConfig | None = None, timeout_s: float | None = 20, other_app: ASGIApp | None = None
) -> AsyncIterator[Served]:
    """A port on loopback; bounded in time, so that a test that waits for nothing fails."""
    app = App()
    bound = bind("127.0.0.1", 0)
    calls = app if as_calls.get() and other_app is None else None
    port = HttpPort(other_app or app, bound, config or PortConfig(keep_alive_s=60), calls=calls)
    await port.start()
    served = Served(app, port, port_of(bound))
    try:
        async with asyncio.timeout(timeout_s):
            yield served
    finally:
        for caller in served.callers:
            caller.writer.close()
        app.go_on.set()
        await port.stop(1.0)
