"""What may be sent to a port that speaks HTTP: bytes that are almost requests, in any pieces."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.net.served.config import HeadLimits, PortConfig
from tests.kits.fuzz.profile import Stage, cut, fuzz, mutated, tried
from tests.kits.port import GET, Caller, Served, all_said, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class Port:
    """A port, and one caller at a time."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._context = serving(SMALL, timeout_s=None)
        self.served: Served = stage.run(self._context.__aenter__())
        stage.at_end(self._close)

    async def _close(self) -> None:
        await self._context.__aexit__(None, None, None)

    def say(self, pieces: list[bytes]) -> bytes:
        """All that is answered, up to the end of the connection, which has to come."""
        return self._stage.run(self._say(pieces))

    async def _say(self, pieces: list[bytes]) -> bytes:
        caller = await self.served.connect()
        try:
            return await all_said(caller, pieces)
        finally:
            self._forget(caller)

    def _forget(self, caller: Caller) -> None:
        caller.writer.close()
        self.served.callers.clear()

    def ask(self) -> int:
        """A good request."""
        return self._stage.run(self._ask())

    async def _ask(self) -> int:
        caller, answer = await self.served.ask(GET)
        self._forget(caller)
        return answer.status


@pytest.fixture(scope="module")
def port(stage: Stage) -> Iterator[Port]:
    made = Port(stage)
    yield made
    assert made.ask() == 200


@fuzz(150)
@given(
    data=mutated(VALID) | st.binary(max_size=2000) | mutated(VALID * 20),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
)
def test_almost_requests(port: Port, data: bytes, cuts: list[int]) -> None:
    with Errors() as errors:
        said = port.say(cut(data, cuts))
        assert said == b"" or said.startswith(b"HTTP/1.1 ")
        assert b" 500 " not in said
        assert port.ask() == 200
    assert errors.texts == []
    tried["bytes for a port"] += 1


class Errors(logging.Handler):
    """What is logged as an error; what is almost a request is none of ours."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))

    def __enter__(self) -> Errors:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: Any) -> None:
        logging.getLogger().removeHandler(self)
