"""All four ports, public and internal, of routers and workers, treat strangers the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

import pytest

from baton_serve.core.net.served.body import BodyBudget
from baton_serve.core.net.sockets import listen, port_of
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.router.peers.listener import CLOSE_S, PeerFront, PeerListener
from tests.kits.port import Caller
from tests.kits.router.cluster import Cluster, make_settings
from tests.kits.worker.front import front

TOKEN = "sesame"
RECORD = RouterRecord(router_id="a" * 12, url="http://router:1", internal_url="http://router:2")


@contextlib.asynccontextmanager
async def router() -> AsyncIterator[int]:
    cluster = Cluster(make_settings(api_keys=(TOKEN,), admin_token=TOKEN))
    await cluster.start()
    try:
        yield int(cluster.url.rpartition(":")[2])
    finally:
        await cluster.close()


@contextlib.asynccontextmanager
async def router_internal() -> AsyncIterator[int]:
    async def app(*_: object) -> None:
        raise AssertionError("a stranger got through")

    sock = listen("127.0.0.1", 0)
    settings = make_settings(internal_token=TOKEN)
    port = PeerListener(settings, PeerFront(settings, RECORD, app, BodyBudget(1 << 20)), sock)
    await port.start()
    try:
        yield port_of(sock)
    finally:
        await port.stop(CLOSE_S)


@contextlib.asynccontextmanager
async def worker(*, internal: bool = False) -> AsyncIterator[int]:
    async with front(token=TOKEN) as made:
        yield (made.internal.base_url.port or 0) if internal else made.port


PORTS = {
    "router": router,
    "router, internal": router_internal,
    "worker": worker,
    "worker, internal": partial(worker, internal=True),
}


@pytest.fixture(params=PORTS)
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    async with PORTS[request.param]() as number:
        yield number


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Caller]:
    caller = Caller(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield caller
    finally:
        caller.writer.close()


async def test_a_head_without_end_is_refused_and_the_connection_closes(port: int) -> None:
    async with connected(port) as caller:
        caller.writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\na: " + b"x" * (64 << 10))
        assert (await caller.answer()).status == 431
        await caller.closed()


async def test_a_head_of_many_lines_is_refused(port: int) -> None:
    async with connected(port) as caller:
        caller.writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"a:\r\n" * 1000)
        assert (await caller.answer()).status == 431
        await caller.closed()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/internal/anything", "/admin/abort"])
async def test_a_body_that_a_stranger_sends_is_not_taken(port: int, path: str) -> None:
    async with connected(port) as caller:
        caller.writer.write(f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        answer = await caller.answer()
        assert answer.status in (401, 404)
        assert answer.headers["connection"] == "close"
        with pytest.raises(ConnectionError):
            for _ in range(100):
                await caller.send(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")


async def test_a_request_for_no_host_is_refused(port: int) -> None:
    async with connected(port) as caller:
        caller.writer.write(b"GET /health HTTP/1.1\r\n\r\n")
        assert (await caller.answer()).code == "invalid_host"
        await caller.closed()
