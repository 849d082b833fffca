"""uvicorn as routers and workers run it: one application on one bound socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import uvicorn

from baton_serve.core.net.late_writes import LateWrites
from baton_serve.core.net.served.acceptor import Acceptor
from baton_serve.core.net.served.call import Calls
from baton_serve.core.net.served.config import PortConfig
from baton_serve.core.net.served.connection import Connection, Served
from baton_serve.core.net.served.connections import Connections

if TYPE_CHECKING:
    from starlette.types import ASGIApp


logger = logging.getLogger("baton.net")


class PortServer(uvicorn.Server):
    """Sets ``up`` when it accepts connections, and leaves signals to the process.

    ``on_refusing`` is called when it stops: after new connections are refused, and before the wait for requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: PortConfig,
        grace_s: float,
        on_refusing: Callable[[], None] = lambda: None,
        calls: Calls | None = None,
        late_writes: LateWrites | None = None,
    ) -> None:
        """``calls`` answers its requests without ASGI, and ``app`` all others.

        ``late_writes`` may put whole answers of ``calls`` off in a burst; without it all are written at once.
        """
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                ws="none",
                lifespan="off",
                interface="asgi3",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=max(1, round(grace_s)),
            )
        )
        self.served = Served(app, calls, late_writes)
        self._port_config = config
        self._acceptors: list[Acceptor] = []
        self._on_refusing = on_refusing
        self._leaving = asyncio.Event()
        self.up = asyncio.Event()
        self.servers = []  # uvicorn's, which are asyncio's
        #: Set by ``startup``.
        self.connections: Connections

    def leave(self) -> None:
        """Begin to shut down."""
        self.should_exit = True
        self._leaving.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on ``sockets``."""
        loop = asyncio.get_running_loop()
        self.connections = Connections(loop, self._port_config, self.served.connections)
        for sock in sockets or ():
            acceptor = Acceptor(sock, self._connection, self.connections)
            acceptor.start()
            self._acceptors.append(acceptor)
        self.started = True
        self.up.set()

    def _connection(self) -> asyncio.Protocol:
        return Connection(self.connections, self.served).as_protocol()

    async def main_loop(self) -> None:
        """Wait for ``leave``. uvicorn's own loop polls ten times a second, and makes a Date header that is not sent."""
        await self._leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new connections, give requests in progress time to end, then cancel them.

        uvicorn's own method polls ten times a second whether they have ended.
        """
        for acceptor in self._acceptors:
            acceptor.close()
        for sock in sockets or ():
            sock.close()
        self._on_refusing()
        tasks, open_ones = self.served.tasks, self.served.connections
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self.connections.opened()
                for connection in tuple(open_ones):
                    connection.shutdown()
                await self.connections.gone()
                while tasks:
                    await asyncio.wait(tasks)
        except TimeoutError:
            logger.error(
                "%s: %d connections had not ended in time; %d requests are cancelled",
                self.connections.config.name,
                len(open_ones),
                len(tasks),
            )
            for task in tasks:
                task.cancel()
            for connection in tuple(open_ones):
                connection.abort()
        finally:
            self.connections.end()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Catch no signals: the process handles them."""
        yield


class HttpPort:
    """Serves one application on one bound socket. ``start`` returns once connections are accepted."""

    def __init__(
        self,
        app: ASGIApp,
        bound: socket.socket,
        config: PortConfig,
        on_refusing: Callable[[], None] = lambda: None,
        calls: Calls | None = None,
    ) -> None:
        self._bound = bound
        self._server = PortServer(app, config, 1.0, on_refusing, calls)
        self._task: asyncio.Task[None] | None = None

    @property
    def connections(self) -> Connections:
        """The connections of clients. Only after ``start``."""
        return self._server.connections

    @property
    def served(self) -> Served:
        """What answers requests, with the connections and tasks that are open."""
        return self._server.served

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
