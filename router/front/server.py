"""The router's uvicorn server, and how it stops.

On SIGTERM or SIGINT, in this order: new connections and requests are refused; running requests continue for
``drain_timeout_s`` and are then aborted, each through its own exit, which releases its lease and its places on workers;
then ``serve`` returns and the caller closes the shared parts. A second signal aborts the requests at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from baton_serve.core.net.late_writes import LateWrites
from baton_serve.core.net.served.config import public_port
from baton_serve.core.net.served.port import PortServer
from baton_serve.core.process.signals import on_signals
from baton_serve.core.protocol.errors import UnavailableError
from baton_serve.router.request.active import ActiveRequests
from baton_serve.router.settings import RouterSettings

if TYPE_CHECKING:
    from baton_serve.router.front import Front

#: Seconds that connections get to close after the last request was aborted.
_CLOSE_S = 2.0


class RouterServer(PortServer):
    """Serves one ``Front``; ``on_ready`` is called once it accepts connections."""

    def __init__(
        self,
        front: Front,
        settings: RouterSettings,
        active: ActiveRequests,
        late_writes: LateWrites,
        on_ready: Callable[[], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        config = public_port(settings, settings.keep_alive_s, tls)
        super().__init__(
            front,
            config,
            settings.drain_timeout_s + _CLOSE_S + 1,
            calls=front.calls,
            late_writes=late_writes,
        )
        self._front = front
        self._drain_timeout_s = settings.drain_timeout_s
        self._active = active
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Do uvicorn's startup, then call ``on_ready``."""
        await super().startup(sockets)
        if self._on_ready is not None:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Call ``stop`` at each signal, as long as the server runs."""
        with on_signals(lambda _: self.stop()):
            yield

    def stop(self) -> None:
        """Begin to stop; when called again, abort the running requests."""
        loop = asyncio.get_running_loop()
        if self._front.closing:
            self._abort()
            return
        self._front.close()
        self.leave()
        loop.call_later(self._drain_timeout_s, self._abort)

    def _abort(self) -> None:
        self._active.stop_all(UnavailableError("The router is shutting down.", code="shutting_down"))
