"""Answers handshakes over HTTP to whoever proves that it knows the internal token, in the scheduler's process.

vLLM's own listener, the side channel, tells anybody where this server's memory is, and dies of any question that it
does not understand. Here such a question is answered 4xx, and ends nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from baton_serve.core.net.served.config import HeadLimits, PortConfig
from baton_serve.core.net.served.port import HttpPort
from baton_serve.core.net.sockets import bind, port_of
from baton_serve.core.process.log_pace import OncePerMinute
from baton_serve.core.protocol.vllm_handshake import CHALLENGE_PATH, RankFacts, new_nonce, place, proven, rank_of, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from baton_serve.core.protocol.vllm_handshake import Rank

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows its own loggers only

#: Few and small requests come here: as many connections as 256 readers of one engine need, and heads of some lines.
PORT = PortConfig(
    keep_alive_s=15.0,
    head=HeadLimits(max_bytes=8 << 10, max_lines=64, timeout_s=5.0),
    name="handshake port",
    max_connections=256,
    unread_s=15.0,
)
#: Longest wait for the start and for the end of the port, seconds.
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 2.0


class HandshakeApp:
    """The application, as ASGI. ``own``: the address that readers dial; ``clock``: what vLLM's deadlines are of."""

    def __init__(
        self, payloads: Mapping[Rank, bytes], key: bytes, own: str, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._payloads = payloads
        self._key = key
        self._own = own
        self._clock = clock
        self._challenge = new_nonce()
        self._refused = OncePerMinute()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer one request, whatever it is."""
        status, body = self._answer(scope)
        headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % len(body))]
        if status == 401:
            headers.append((b"www-authenticate", b"Baton"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, scope: Scope) -> tuple[int, bytes]:
        path = scope["path"]
        rank = rank_of(path)
        if rank is None and path != CHALLENGE_PATH:
            return 404, b""
        if scope["method"] != "GET":
            return 405, b""
        if rank is None:
            return 200, self._challenge.encode()
        return self._tell(rank, path, dict(scope["headers"]), scope["client"])

    def _tell(
        self, rank: Rank, path: str, headers: Mapping[bytes, bytes], client: tuple[str, int] | None
    ) -> tuple[int, bytes]:
        dialed = headers.get(b"host", b"").decode("latin-1")
        proof = proven(self._key, headers.get(b"authorization", b"").decode("latin-1"), dialed, self._challenge, path)
        if proof is None:
            self._complain(client, "without a proof of the internal token")
            return 401, b""
        if dialed != self._own:  # the reader has the token, so its word is shown
            self._complain(client, f"meant for {dialed}, while this server is at {self._own}")
            return 403, b""
        payload = self._payloads.get(rank)
        return (404, b"") if payload is None else (200, seal(self._key, proof, RankFacts(payload, self._clock())))

    def _complain(self, client: tuple[str, int] | None, why: str) -> None:
        peer = client[0] if client else "an unknown address"
        if self._refused.due(peer):
            logger.warning("Refused a handshake from %s, %s.", peer, why)


class HandshakeServer:
    """The port, with a thread and an event loop of its own, so that no step of the scheduler waits for a reader.

    ``port`` 0 lets the system choose. The constructor binds; raises OSError with one line for people.
    """

    def __init__(self, host: str, port: int, key: bytes) -> None:
        self._bound = bind(host, port)
        self._host = host
        self._key = key
        #: The port that readers are told.
        self.port = port_of(self._bound)
        #: Of the thread, once the port is up: how to end it.
        self._end: Callable[[], object] = lambda: None
        self._is_up = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, payloads: Mapping[Rank, bytes]) -> None:
        """Answer with these payloads from now on, until ``stop``. Called once; raises RuntimeError if it cannot."""
        app = HandshakeApp(payloads, self._key, place(self._host, self.port))
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(app)), name="baton-handshakes", daemon=True
        )
        self._thread.start()
        if not self._is_up.wait(START_TIMEOUT_S):
            raise RuntimeError(f"handshakes cannot be answered on {place(self._host, self.port)}")
        logger.info("Handshakes are answered over HTTP on %s.", place(self._host, self.port))

    def stop(self) -> None:
        """Close the port. Safe to call twice, and without ``start``."""
        if self._thread is None:
            self._bound.close()
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._end()
        self._thread.join(STOP_TIMEOUT_S)

    async def _serve(self, app: HandshakeApp) -> None:
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        port = HttpPort(app, self._bound, PORT)
        await port.start()
        self._end = lambda: loop.call_soon_threadsafe(stopping.set)
        self._is_up.set()
        await stopping.wait()
        await port.stop(1.0)
