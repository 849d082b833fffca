"""What may be sent to a port that speaks HTTP: bytes that are almost requests, in any pieces."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.net.served.config import HeadLimits, PortConfig
from tests.kits.fuzz.profile import cut, fuzz, mutated, tried
from tests.kits.port import GET, Caller, Served, all_said, serving

VALID = (
    GET
    + b"POST /echo HTTP/1.1\r\nHost: router:8000\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    + b'{"a": 12}'
    + b"POST /echo?x=%20 HTTP/1.1\r\nhost: [::1]\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
    + b'4;name="value"\r\nabcd\r\n10\r\n0123456789abcdef\r\n0\r\ntrailer: x\r\n\r\n'
    + b"POST /early HTTP/1.1\r\nhost: x\r\nconnection: keep-alive, te\r\ncontent-length: 3\r\n\r\nabc"
    + b"GET /echo HTTP/1.0\r\nconnection: close\r\n\r\n"
)
SMALL = PortConfig(keep_alive_s=60, head=HeadLimits(max_bytes=512, max_lines=10, timeout_s=5), linger_s=5)


async def say(served: Served, pieces: list[bytes]) -> bytes:
    """All that is answered, up to the end of the connection, which has to come."""
    caller = await served.connect()
    try:
        return await all_said(caller, pieces)
    finally:
        forget(served, caller)


async def ask(served: Served) -> int:
    """The status of a good request."""
    caller, answer = await served.ask(GET)
    forget(served, caller)
    return answer.status


def forget(served: Served, caller: Caller) -> None:
    caller.writer.close()
    served.callers.clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Served]:
    async with serving(SMALL, timeout_s=None) as made:
        yield made
        assert await ask(made) == 200


@fuzz(150)
@given(
    data=mutated(VALID) | st.binary(max_size=2000) | mutated(VALID * 20),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
)
async def test_almost_requests(served: Served, caplog: pytest.LogCaptureFixture, data: bytes, cuts: list[int]) -> None:
    """What is almost a request is no error of ours."""
    said = await say(served, cut(data, cuts))
    assert said == b"" or said.startswith(b"HTTP/1.1 ")
    assert b" 500 " not in said
    assert await ask(served) == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    tried["bytes for a port"] += 1
