"""When a port has stopped, nothing of it goes on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from baton_serve.core.net.served.port import HttpPort
from tests.kits.patience import eventually
from tests.kits.port import GET, serving

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


@asynccontextmanager
async def asking(app: Slow) -> AsyncIterator[HttpPort]:
    """Its port, which a client has just sent a request."""
    async with serving(other_app=app) as served:
        with socket.create_connection(("127.0.0.1", served.number)) as client:
            client.sendall(GET)
            yield served.port


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_request_that_comes_while_the_port_stops_has_ended_when_the_port_has(
    run: Callable[..., None], turns: int
) -> None:
    async def main() -> None:
        app = Slow()
        async with asking(app) as port:
            for _ in range(turns):
                await asyncio.sleep(0)
            await port.stop(5)
            assert (app.running, len(port.connections), len(port.connections.opening)) == (0, 0, 0)

    run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_request_that_does_not_end_in_time_is_cancelled(run: Callable[..., None]) -> None:
    async def main() -> None:
        app = Slow(is_stuck=True)
        async with asking(app) as port:
            await eventually(lambda: app.running)
            await port.stop(1)
            await port.connections.gone()
            assert app.running == 0

    run(main())
