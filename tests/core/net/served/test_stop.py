"""When a port has stopped, nothing of it goes on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from baton_serve.core.net.served.config import PortConfig
from baton_serve.core.net.served.port import HttpPort
from baton_serve.core.net.sockets import bind
from tests.kits.patience import eventually

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
#: Turns of the loop between the client's request and the stop: accepted, opened, read.
TURNS = range(6)


class Slow:
    """An application that takes a few turns, and one that never ends while ``is_stuck``."""

    def __init__(self, *, is_stuck: bool = False) -> None:
        self.running = 0
        self.is_stuck = is_stuck

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.running += 1
        try:
            for _ in range(20):
                await asyncio.sleep(0)
            if self.is_stuck:
                await asyncio.Event().wait()
        finally:
            self.running -= 1


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_request_that_comes_while_the_port_stops_has_ended_when_the_port_has(
    run: Callable[..., None], turns: int
) -> None:
    async def main() -> None:
        app, sock = Slow(), bind("127.0.0.1", 0)
        port = HttpPort(app, sock, PortConfig(keep_alive_s=60))
        await port.start()
        with socket.create_connection(sock.getsockname()) as client:
            client.sendall(GET)
            for _ in range(turns):
                await asyncio.sleep(0)
            await port.stop(5)
            assert (app.running, len(port.connections), len(port.connections.opening)) == (0, 0, 0)

    run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_request_that_does_not_end_in_time_is_cancelled(run: Callable[..., None]) -> None:
    async def main() -> None:
        app, sock = Slow(is_stuck=True), bind("127.0.0.1", 0)
        port = HttpPort(app, sock, PortConfig(keep_alive_s=60))
        await port.start()
        with socket.create_connection(sock.getsockname()) as client:
            client.sendall(GET)
            await eventually(lambda: app.running)
            await port.stop(1)
            await port.connections.gone()
            assert app.running == 0

    run(main())
