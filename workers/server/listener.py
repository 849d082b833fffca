"""One HTTP port: a bound socket and the uvicorn server on it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from collections.abc import Generator

    from starlette.types import ASGIApp

BACKLOG = 4096
#: Seconds an idle connection stays open: longer than any client keeps one in its pool, so that none of them ever
#: sends a request into a connection that is just being closed.
KEEP_ALIVE_S = 300


class ListenError(Exception):
    """The port cannot be had. One line for a person."""


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 lets the system choose. Raises ListenError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, proto)
    except OSError as error:
        raise ListenError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return bound


def port_of(bound: socket.socket) -> int:
    """The port it got."""
    port: int = bound.getsockname()[1]
    return port


def base_url(host: str, port: int) -> str:
    """For clients; IPv6 addresses get their brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpPort:
    """Serves one application on one socket. ``start`` returns once connections are accepted."""

    def __init__(self, app: ASGIApp, bound: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._bound = bound
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept connections. Raises what uvicorn raises."""
        self._task = asyncio.create_task(self._server.serve([self._bound]), name="http-port")
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait({self._task, up}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._task.done():
            await self._task

    async def stop(self, grace_s: float) -> None:
        """Close the port; requests in progress get ``grace_s`` seconds, then they are cancelled. Safe to call twice."""
        if self._task is None:
            self._bound.close()
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.leave()
        await self._task


class _Server(uvicorn.Server):
    """Tells when it is up, and leaves signals to the process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Shut down now."""
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        """One turn a second, for the date header, instead of uvicorn's ten."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), 1.0)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
