"""uvicorn as this router runs it, and how it stops.

On SIGTERM or SIGINT, in this order: no new connection and no new request is taken; running requests go on for
``drain_timeout_s`` and are then aborted, each through its own exit, which releases its lease and tells its workers;
then ``serve`` returns and the caller closes what the requests needed. A second signal aborts them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from protocol.errors import UnavailableError
from router.reply import DROP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.front import Front
    from router.services import Services

#: Connections that may wait to be accepted: asyncio's 100 drops some when hundreds of clients come at once.
BACKLOG = 4096
#: After the last request was told to end, connections get this long to close.
_CLOSE_S = 2.0


def listen(host: str, port: int, shared: bool = False) -> socket.socket:
    """A bound socket that listens. Raises OSError with one clear line when the address cannot be had.

    ``shared``: others that say so too listen on the same port, and the system deals connections out to all of them.
    """
    with _clear_errors(host, port):
        sock = _tcp_socket(host)
        try:
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((host, port))
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        return sock


def reserve(host: str, port: int) -> socket.socket:
    """A bound socket that never listens: the port stays ours for those that listen on it ``shared``.

    Raises OSError as ``listen``, also when somebody listens there ``shared`` already.
    """
    with _clear_errors(host, port):
        sock = _tcp_socket(host)
        try:
            sock.bind((host, port))
            # Only now: set before, it would have let us in beside strangers. Whoever binds from here on has to share.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError:
            sock.close()
            raise
        return sock


def _tcp_socket(host: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@contextlib.contextmanager
def _clear_errors(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {error.strerror}") from None


def _tune_collector() -> None:
    """Requests leave hardly any cycles behind; by default looking for them costs a tenth of the CPU at 512 streams."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class _Connection(HttpToolsProtocol):
    """uvicorn's, which offers the application no way to close a connection whose client reads nothing."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][DROP] = self.transport.abort


class RouterServer(uvicorn.Server):
    """Serves one ``Front``; ``on_ready`` is called once it accepts connections."""

    def __init__(self, front: Front, services: Services, on_ready: Callable[[], None] | None = None) -> None:
        settings = services.settings
        super().__init__(
            uvicorn.Config(
                front,
                loop="none",
                http=_Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=settings.keep_alive_s,
                timeout_graceful_shutdown=int(settings.drain_timeout_s + _CLOSE_S + 1),
            )
        )
        self._front = front
        self._services = services
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, then ``on_ready``."""
        await super().startup(sockets)
        _tune_collector()
        if self._on_ready is not None:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals as events of the loop, for as long as the server runs; not outside the main thread (tests)."""
        loop = asyncio.get_running_loop()
        caught = []
        for name in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError, RuntimeError):
                loop.add_signal_handler(name, self.stop)
                caught.append(name)
        try:
            yield
        finally:
            for name in caught:
                loop.remove_signal_handler(name)

    def stop(self) -> None:
        """Begin to stop; called again, abort what runs now."""
        loop = asyncio.get_running_loop()
        if self._front.closing:
            self._abort()
            return
        self._front.close()
        self.should_exit = True
        loop.call_later(self._services.settings.drain_timeout_s, self._abort)

    def _abort(self) -> None:
        self._services.active.stop_all(UnavailableError("The router is shutting down.", code="shutting_down"))
