"""Who is answered before its request has come may read the answer; what it still sends is not taken for long."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.core.net.served.config import PortConfig
from baton_serve.core.net.served.connection import LINGER_BYTES
from tests.kits.port import GET, Served, serving

EARLY = b"POST /early HTTP/1.1\r\nhost: x\r\n"
CHUNKED = EARLY + b"transfer-encoding: chunked\r\n\r\n"
MIB = 1 << 20
CHUNK = b"%x\r\n%s\r\n" % (MIB, b"x" * MIB)


@pytest.mark.parametrize("method", [b"POST", b"GET", b"DELETE"])
async def test_the_rest_of_a_body_is_not_taken(method: bytes, served: Served) -> None:
    caller, answer = await served.ask(CHUNKED.replace(b"POST", method))
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    with pytest.raises(ConnectionError):
        for _ in range(100):
            await caller.send(CHUNK)
    assert len(served.app.scopes) == 1


async def test_a_client_that_sends_everything_first_reads_its_answer(served: Served) -> None:
    num_bytes = LINGER_BYTES - MIB
    caller = await served.send(EARLY + b"content-length: %d\r\n\r\n" % num_bytes)
    for _ in range(num_bytes // MIB):
        await caller.send(b"x" * MIB)
    answer = await caller.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    await caller.closed()


async def test_a_client_that_goes_on_holding_the_connection_is_not_waited_for() -> None:
    async with serving(PortConfig(keep_alive_s=60, linger_s=0.05)) as served:
        caller, answer = await served.ask(EARLY + b"content-length: 100\r\n\r\n")
        assert answer.status == 200
        await caller.closed()
        with pytest.raises(ConnectionError):
            while True:
                await caller.send(b"x")
                await asyncio.sleep(0)


async def test_a_body_that_came_with_its_head_keeps_the_connection(served: Served) -> None:
    caller, answer = await served.ask(EARLY + b"content-length: 2\r\n\r\nab")
    assert (answer.status, answer.headers.get("connection")) == (200, None)
    await caller.send(GET)
    assert (await caller.answer()).status == 200


@pytest.mark.parametrize("method", [b"POST", b"PUT"])
async def test_a_head_is_looked_at_before_its_body_is_refused(method: bytes, served: Served) -> None:
    """Whoever has no right to ask is told the same, however what it sends is cut."""
    head = method + b" /early HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"no size\r\n"
    for pieces in ([head + body], [head, body], [head[:-1], head[-1:] + body]):
        caller = await served.connect()
        await caller.send_pieces(pieces)
        assert (await caller.answer()).status == 200


async def test_a_malformed_body_is_refused_however_it_is_cut(served: Served) -> None:
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    for pieces in ([head + b"no size\r\n"], [head, b"no size\r\n"]):
        caller = await served.connect()
        await caller.send_pieces(pieces)
        assert (await caller.answer()).status == 400
        await caller.closed()
