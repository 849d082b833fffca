"""The internal port, on which other routers call this one. Calls need the internal token, except ``/health`` and the
proof that this router knows the token.

The internal port is a server of its own. It answers while the public port drains, and closes last: its end tells
others that this router is gone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import TYPE_CHECKING

from baton_serve.core.net.access.hosts import hosts_of
from baton_serve.core.net.access.unguarded import check_local
from baton_serve.core.net.answers import send_whole
from baton_serve.core.net.served.body import Body, BodyBudget, BodyReader
from baton_serve.core.net.served.config import internal_port
from baton_serve.core.net.served.port import HttpPort
from baton_serve.core.protocol.errors import ApiError
from baton_serve.core.protocol.excerpts import excerpt
from baton_serve.core.protocol.hello import HELLO_PATH, NONCE, router_proof
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.core.protocol.token_keys import hello_key
from baton_serve.router.edge.auth import BearerKeys
from baton_serve.router.edge.body_limits import SMALL
from baton_serve.router.peers.link import ALIVE_PATH, until_first
from baton_serve.router.settings import RouterSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger("baton.router")

#: Seconds; longer than any other router keeps a connection in its pool.
_KEEP_ALIVE_S = 300
#: Seconds that calls in progress get when the port closes.
CLOSE_S = 1.0


class PeerFront:
    """Checks the token, then passes the call to ``app``; reads the body if the route takes one. Holds links open.

    A caller may first have this router prove that it also knows the token (``core/protocol/hello.py``).
    """

    def __init__(self, settings: RouterSettings, record: RouterRecord, app: ASGIApp, budget: BodyBudget) -> None:
        self._record = record
        self._alive_path = ALIVE_PATH + record.router_id
        token = settings.internal_token
        self._keys = BearerKeys(() if token is None else (token,))
        bound = settings.bound_internal_host
        names = hosts_of(bound, settings.advertised(bound), settings.allowed_hosts)
        #: Host names under which calls are answered if there is no token; None: the token guards all but ``/health``.
        self._local_names = names if token is None else None
        self._hello_key = None if token is None else hello_key(token.get_secret_value())
        self._bodies = BodyReader(settings.max_body_bytes, budget)
        self._body_timeout_s = settings.body_timeout_s
        self._app = app
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End all links."""
        self._closed.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if (proof := self._proof(scope["path"])) is not None:
            await send_whole(send, 200, proof, b"text/plain")
            return
        try:
            if self._local_names is not None:
                check_local(self._local_names, headers)
            if scope["path"] != "/health":
                self._keys.check(headers.get(b"authorization"))
        except ApiError as error:
            await send_whole(send, error.status, error.to_json())
            return
        if scope["path"] == self._alive_path:
            await self._hold(receive, send)
        else:
            await self._pass_on(scope, headers, receive, send)

    async def _pass_on(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        with Body(self._bodies) as body:
            receive = body.when_asked(scope["method"], headers, receive, self._body_timeout_s, SMALL.check_bytes)
            try:
                await self._app(scope, receive, send)
            except Exception:
                log.exception("%s %s of another router met a bug", scope["method"], excerpt(scope["path"]))

    def _proof(self, path: str) -> bytes | None:
        """The proof, if the call asks for it; None for any other call."""
        nonce = path.removeprefix(HELLO_PATH)
        if self._hello_key is None or nonce == path or NONCE.fullmatch(nonce) is None:
            return None
        return router_proof(self._hello_key, self._record, nonce).encode()

    async def _hold(self, receive: Receive, send: Send) -> None:
        """Answer a link, with an answer that does not end while this process lives."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"cache-control", b"no-store")]})
        await send({"type": "http.response.body", "body": b"alive\n", "more_body": True})
        await until_first(_until_gone(receive), self._closed.wait())
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class PeerListener(HttpPort):
    """Serves the internal port on one socket. ``start`` returns once it answers."""

    def __init__(
        self, settings: RouterSettings, front: PeerFront, sock: socket.socket, tls: ssl.SSLContext | None = None
    ) -> None:
        # A router whose link ends connects again, and must then be refused: so links end only after the port is closed.
        super().__init__(front, sock, internal_port(settings, _KEEP_ALIVE_S, tls), on_refusing=front.close)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
