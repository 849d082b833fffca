"""Requests over HTTP/1.1 on kept connections.

A general client costs more CPU than all the rest of a request in the router: httpx's pool walks its connections for
every request, and takes 4 ms of CPU for it. Here a connection serves one request at a time, and goes back to the pool
of its origin the moment that the answer is complete.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.core.net.client.connection import Connection, Pieces
from baton_serve.core.net.client.errors import ConnectError, ConnectionLost
from baton_serve.core.net.deadlines import Timeouts
from baton_serve.core.net.late_writes import LateWrites
from baton_serve.core.net.tls import InternalTls, why

logger = logging.getLogger("baton.net")

#: A connection that was idle for longer is not used again: uvicorn closes one after 5 s by default.
MAX_IDLE_S: Final = 4.0
#: A kept connection that breaks within this many seconds of writing a request had been closed before: noticing that
#: takes one round trip. Later, the server may be at work on the request.
STALE_S = 0.1
#: Base URLs remembered. Beyond this number, URLs without a connection are forgotten.
MAX_ORIGINS = 256


class _Origin:
    """The parts of a base URL, and the idle connections to it; the one used last is last."""

    def __init__(self, base_url: str, key: str) -> None:
        parts = urlsplit(base_url)
        self.base_url = base_url
        self.speaks_tls = secure = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if secure else 80)
        #: Why TLS failed the last time; logged when it changes.
        self.complaint = ""
        self.prefix = parts.path.rstrip("/")
        self.host_header = parts.netloc.rpartition("@")[2]
        self.idle: list[Connection] = []
        self.use_key(key)

    def use_key(self, key: str) -> None:
        """Send it with each request from now on."""
        self.authorization = f"authorization: Bearer {key}\r\n" if key else ""

    def head(self, method: str, path: str, headers: Sequence[tuple[str, str]], num_bytes: int) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        return (
            f"{method} {self.prefix}{path} HTTP/1.1\r\nhost: {self.host_header}\r\n"
            "content-type: application/json\r\naccept-encoding: identity\r\n"
            f"content-length: {num_bytes}\r\n{self.authorization}{lines}\r\n"
        ).encode("latin-1")

    def take(self, now_s: float) -> Connection | None:
        while self.idle:
            connection = self.idle.pop()
            if connection.usable and now_s - connection.idle_since_s < MAX_IDLE_S:
                return connection
            connection.abort()
        return None


class HttpClient:
    """Calls servers, each on connections of its own. Use it from one event loop.

    Cancelling a call closes its connection, which is how a server learns that the caller has gone.
    """

    def __init__(
        self, connect_timeout_s: float, tls: InternalTls | None = None, late_writes: LateWrites | None = None
    ) -> None:
        """With ``tls``, as routers and workers use it, only servers in ``foreign`` are called without it.

        ``late_writes`` may put requests off in a burst; None: each is written at once.
        """
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        #: Base URLs of servers that are not Baton's: their certificates are checked with the CAs of this machine.
        self.foreign: set[str] = set()
        #: By base URL: the API key that is sent to the server.
        self._keys: dict[str, str] = {}
        self._origins: dict[str, _Origin] = {}
        self._connections: set[Connection] = set()
        self._timeouts: Timeouts | None = None
        self._late_writes = late_writes
        #: Noted at the first call, as none may run before. Each look for it asks the kernel for the process id.
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<HttpClient {len(self._connections)} connections to {len(self._origins)} origins>"

    def use_key(self, base_url: str, key: str) -> None:
        """Send this key with each request to a server from now on, and to no other; empty: none."""
        if key:
            self._keys[base_url] = key
        else:
            self._keys.pop(base_url, None)
        origin = self._origins.get(base_url)
        if origin is not None:
            origin.use_key(key)

    async def request(
        self,
        method: str,
        base_url: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | Pieces,
        timeout_s: float,
        patience: Callable[[], Coroutine[Any, Any, None]] | None = None,
        *,
        once: bool = False,
        sending: Callable[[], None] | None = None,
    ) -> HttpAnswer:
        """Send a request, and wait at most ``timeout_s`` for status and headers. Raises CallError.

        The pieces of a ``body`` are sent as if they were joined. With ``patience`` the call continues to wait when the
        time is up, until ``patience`` returns. ``headers`` must not contain line breaks. When a kept connection breaks
        at once, and nothing of an answer has come, the request is sent again on a new one, unless it must be sent
        ``once`` only: the new one may lead to another server. ``sending`` is called whenever there is a connection and
        the request is about to be written; if it raises, nothing is written and the call ends with what it raised.
        """
        try:
            origin = self._origins.get(base_url) or self._add_origin(base_url)
            pieces = body if isinstance(body, tuple) else (body,)
            body_bytes = 0
            for piece in pieces:
                body_bytes += len(piece)
            head = origin.head(method, path, headers, body_bytes)
        except ValueError:
            raise ConnectError("the worker's address is none") from None
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        sent_s = loop.time()
        connection = kept = origin.take(sent_s)
        was_taken = False
        while True:
            if connection is None:
                try:
                    connection = await self._connect(origin)
                except ConnectError as error:
                    error.was_sent = was_taken
                    raise
            if sending is not None:
                _tell(connection, sending)
            answer = connection.send(head, pieces, body_bytes)
            patient = None if patience is None else _Patience(answer, patience)
            timer = connection.call_later(timeout_s, answer.fail_unless_begun if patient is None else patient.begin)
            try:
                await answer.headers()
                return answer
            except ConnectionLost as lost:
                was_taken = lost.was_taken
                is_stale = connection is kept and not answer.started and loop.time() - sent_s <= STALE_S
                if once or not is_stale:
                    raise
                connection = None
            except BaseException:
                answer.close()
                raise
            finally:
                timer.cancel()
                if patient is not None:
                    patient.end()

    def _add_origin(self, base_url: str) -> _Origin:
        if len(self._origins) >= MAX_ORIGINS:
            used = {id(connection.idle) for connection in self._connections}
            self._origins = {url: origin for url, origin in self._origins.items() if id(origin.idle) in used}
        origin = self._origins[base_url] = _Origin(base_url, self._keys.get(base_url, ""))
        return origin

    async def _connect(self, origin: _Origin) -> Connection:
        loop = asyncio.get_running_loop()
        if self._timeouts is None:
            self._timeouts = Timeouts(loop)
        options = self._tls_options(origin)
        connection = Connection(origin.idle, self._connections, self._timeouts, self._late_writes)
        is_open = False
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await loop.create_connection(connection.as_protocol, origin.host, origin.port, **options)
            is_open = True
        except TimeoutError:
            raise ConnectError("no connection to the worker in time") from None
        except ssl.SSLError as error:
            raise self._refused(origin, why(error)) from None
        except (OSError, ValueError):  # ValueError: a name that DNS cannot have
            raise ConnectError("the worker does not accept connections") from None
        finally:
            if not is_open:
                connection.abort()
        origin.complaint = ""
        return connection

    def _tls_options(self, origin: _Origin) -> dict[str, Any]:
        """The TLS arguments for ``create_connection``. Raises ConnectError where TLS is set up and the URL is http."""
        if not origin.speaks_tls:
            if self._tls is not None:
                raise self._refused(origin, "it does not speak TLS, which is set up here")
            return {}
        if self._tls is None or origin.base_url in self.foreign:
            return {"ssl": _machines_context()}
        return self._tls.to(origin.host)

    def _refused(self, origin: _Origin, complaint: str) -> ConnectError:
        if origin.complaint != complaint:
            origin.complaint = complaint
            logger.warning("no connection to %s: %s", origin.base_url, complaint)
        return ConnectError("the worker cannot be reached over TLS")

    async def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections):
            connection.abort()
        if self._timeouts is not None:
            self._timeouts.close()
        await asyncio.sleep(0)  # lets the transports call connection_lost


@functools.cache
def _machines_context() -> ssl.SSLContext:
    """The context for servers that are certified by a CA that this machine trusts."""
    return ssl.create_default_context()


def _tell(connection: Connection, sending: Callable[[], None]) -> None:
    if connection.usable:  # else nothing will be written
        try:
            sending()
        except BaseException:
            connection.abort()
            raise


class _Patience:
    """What waits for an answer when its time is up."""

    def __init__(self, answer: HttpAnswer, patience: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._answer = answer
        self._patience = patience
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Fail the answer when ``patience`` returns."""
        self._task = asyncio.create_task(self._patience())
        self._task.add_done_callback(self._done)

    def end(self) -> None:
        """The answer has come, or its caller has gone."""
        if self._task is not None:
            self._task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._answer.fail_unless_begun()
