"""HTTP/1.1 to the workers, on asyncio protocols: the ``Upstream`` port.

Written here because a general client costs more CPU than all the rest of a request (httpx's pool, which walks its
connections for every request, 4 ms of it). A connection serves one request at a time and goes back to its origin's
pool the moment the answer is complete. A byte that comes when no answer is due ends it: whose answer that would be is
not known, and it must never be the next request's.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import httptools

from core.net.tls import why
from router.upstream.answer import HttpAnswer
from router.upstream.port import ConnectError, ConnectionLost, LegError, LegTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from core.net.tls import InternalTls

log = logging.getLogger("baton.router")

#: Kept connections older than this are not used again: uvicorn's own limit, which it closes at, is 5 s.
MAX_IDLE_S = 4.0
#: A kept connection that breaks so soon after it was written to had been closed before: the news takes one round trip.
#: Later, the worker may be at work on what was sent.
STALE_S = 0.1
#: A worker that vanished without a word (host or network down) is noticed: a silent connection is probed after so many
#: seconds, then at this interval; what was sent has to be acknowledged within the last.
KEEP_ALIVE_S = 15
KEEP_ALIVE_INTERVAL_S = 5
USER_TIMEOUT_S = 30
#: Bytes of status line and headers, of trailers, and of anything else that comes without a byte of a body.
MAX_HEAD_BYTES = 64 << 10
#: Base URLs remembered; above, those without a connection are forgotten.
MAX_ORIGINS = 256


class _NotDue(Exception):
    """An answer begins that nobody asked for."""


class _Connection(asyncio.Protocol):
    """One connection; the callbacks without underscore are called by the parser."""

    def __init__(self, idle: list[_Connection], clients: set[_Connection]) -> None:
        #: Where it waits for the next request: its origin's.
        self.idle = idle
        self._clients = clients
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: HttpAnswer | None = None
        self._status = 0
        self._until_eof = True
        #: Since the last byte of a body. The parser keeps a header until it is whole.
        self._num_head_bytes = 0
        self._paused = False
        self.idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        _notice_silence(transport.get_extra_info("socket"))
        self._clients.add(self)

    def send(self, data: bytes) -> HttpAnswer:
        answer = self._answer = HttpAnswer(self)
        self._until_eof = True
        self._num_head_bytes = 0
        if self._transport is None or self._transport.is_closing():
            answer.fail(ConnectionLost("the connection is closed"))
        else:
            self._transport.write(data)
        return answer

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.abort()
            return
        self._answer.started = True
        self._num_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._lose(ConnectionLost("the worker's answer was not HTTP"))
            self.abort()
            return
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._lose(ConnectionLost("the head of the worker's answer was larger than allowed"))
            self.abort()

    def eof_received(self) -> None:
        if self._answer is not None and self._answer.status and self._until_eof:
            answer, self._answer = self._answer, None
            answer.finish(framed=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._clients.discard(self)
        if self in self.idle:
            self.idle.remove(self)
        self._lose(ConnectionLost("the worker closed the connection"))

    def _lose(self, error: LegError) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.fail(error)

    def abort(self) -> None:
        """Close now. The answer, if one is due, is not told: whoever aborts no longer wants it."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self._paused:
            self._paused = False
            self._transport.resume_reading()

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def on_message_begin(self) -> None:
        if self._answer is None:
            raise _NotDue  # comes back out of feed_data as an HttpParserError

    def on_header(self, name: bytes, value: bytes) -> None:
        answer = self._answer
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._until_eof = False
        elif answer is not None and name == b"content-type":
            answer.content_type = value
        elif answer is not None and name == b"retry-after":
            answer.retry_after = value

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._answer is not None and self._status >= 200:
            self._answer.begin(self._status)

    def on_body(self, body: bytes) -> None:
        self._num_head_bytes = 0
        if self._answer is not None:
            self._answer.feed(body)

    def on_message_complete(self) -> None:
        if self._status < 200:  # 100 Continue and the like come before the answer
            return
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.finish()
        self.resume()
        if self._parser.should_keep_alive() and self.usable:
            self.idle_since_s = asyncio.get_running_loop().time()
            self.idle.append(self)
        else:
            self.abort()


def _notice_silence(sock: socket.socket) -> None:
    """TCP_NODELAY is asyncio's own default."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": KEEP_ALIVE_S,
        "TCP_KEEPINTVL": KEEP_ALIVE_INTERVAL_S,
        "TCP_USER_TIMEOUT": USER_TIMEOUT_S * 1000,
    }
    for name, value in options.items():
        option = getattr(socket, name, None)
        if option is not None:  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class _Origin:
    """Where one base URL leads, and its idle connections (the one used last is on top)."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self.base_url = base_url
        self.speaks_tls = secure = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if secure else 80)
        #: Why it could not be reached the last time, where that was TLS; it is logged when it changes.
        self.complaint = ""
        self.prefix = parts.path.rstrip("/")
        self.host_header = parts.netloc.rpartition("@")[2]
        self.idle: list[_Connection] = []

    def head(self, method: str, path: str, headers: Sequence[tuple[str, str]], num_bytes: int) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        return (
            f"{method} {self.prefix}{path} HTTP/1.1\r\nhost: {self.host_header}\r\n"
            f"content-type: application/json\r\ncontent-length: {num_bytes}\r\n{lines}\r\n"
        ).encode("latin-1")

    def take(self, now_s: float) -> _Connection | None:
        while self.idle:
            connection = self.idle.pop()
            if connection.usable and now_s - connection.idle_since_s < MAX_IDLE_S:
                return connection
            connection.abort()
        return None


class HttpUpstream:
    """``Upstream`` with a pool of connections per worker. Use it from one event loop."""

    def __init__(self, connect_timeout_s: float, tls: InternalTls | None = None) -> None:
        """``tls``: of Baton's own processes, which are then never called without it."""
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        #: Base URLs that may be anybody's: what certifies them is what this machine trusts.
        self.foreign: set[str] = set()
        self._origins: dict[str, _Origin] = {}
        self._connections: set[_Connection] = set()

    def __repr__(self) -> str:
        return f"<HttpUpstream {len(self._connections)} connections to {len(self._origins)} origins>"

    async def request(
        self,
        method: str,
        base_url: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        timeout_s: float,
        patience: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> HttpAnswer:
        try:
            origin = self._origins.get(base_url) or self._add_origin(base_url)
            data = origin.head(method, path, headers, len(body)) + body
        except ValueError:
            raise ConnectError("the worker's address is none") from None
        clock = asyncio.get_running_loop().time
        sent_s = clock()
        kept = origin.take(sent_s)
        if kept is not None:
            answer = kept.send(data)
            try:
                return await _wait(answer, timeout_s, patience)
            except ConnectionLost:
                if answer.started or clock() - sent_s > STALE_S:
                    raise
        try:
            connection = await self._connect(origin)
        except ConnectError as error:
            error.was_sent = kept is not None
            raise
        return await _wait(connection.send(data), timeout_s, patience)

    def _add_origin(self, base_url: str) -> _Origin:
        if len(self._origins) >= MAX_ORIGINS:
            used = {id(connection.idle) for connection in self._connections}
            self._origins = {url: origin for url, origin in self._origins.items() if id(origin.idle) in used}
        origin = self._origins[base_url] = _Origin(base_url)
        return origin

    async def _connect(self, origin: _Origin) -> _Connection:
        loop = asyncio.get_running_loop()
        options = self._tls_options(origin)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(origin.idle, self._connections), origin.host, origin.port, **options
                )
        except TimeoutError:
            raise ConnectError("no connection to the worker in time") from None
        except ssl.SSLError as error:
            raise self._refused(origin, why(error)) from None
        except (OSError, ValueError):  # ValueError: a name that DNS cannot have
            raise ConnectError("the worker does not accept connections") from None
        origin.complaint = ""
        return connection

    def _tls_options(self, origin: _Origin) -> dict[str, Any]:
        """For ``create_connection``. Raises ConnectError where nothing may go without TLS."""
        if not origin.speaks_tls:
            if self._tls is not None:
                raise self._refused(origin, "it does not speak TLS, which is set up here")
            return {}
        if self._tls is None or origin.base_url in self.foreign:
            return {"ssl": _machines_context()}
        return {"ssl": self._tls.client(), "server_hostname": self._tls.name_of(origin.host)}

    def _refused(self, origin: _Origin, complaint: str) -> ConnectError:
        if origin.complaint != complaint:
            origin.complaint = complaint
            log.warning("no connection to %s: %s", origin.base_url, complaint)
        return ConnectError("the worker cannot be reached over TLS")

    async def close(self) -> None:
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # lets the transports call connection_lost


@functools.cache
def _machines_context() -> ssl.SSLContext:
    """Trusts whom this machine trusts."""
    return ssl.create_default_context()


async def _wait(
    answer: HttpAnswer, timeout_s: float, patience: Callable[[], Coroutine[Any, Any, None]] | None
) -> HttpAnswer:
    loop = asyncio.get_running_loop()
    patient: asyncio.Task[None] | None = None

    def give_up() -> None:
        if not answer.status:  # else it has come in this very turn
            answer.fail(LegTimeout("the worker did not answer"))

    def time_is_up() -> None:
        nonlocal patient
        if patience is None:
            give_up()
        else:
            patient = loop.create_task(patience())
            patient.add_done_callback(lambda task: None if task.cancelled() else give_up())

    timer = loop.call_later(timeout_s, time_is_up)
    try:
        await answer.headers()
    except BaseException:
        answer.close()
        raise
    finally:
        timer.cancel()
        if patient is not None:
            patient.cancel()
    return answer
