"""The bare legs: what they find out about a message, and a client's request without sockets."""

from __future__ import annotations

from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest

from bench.router.bare.client import Client, split

HEAD = b"POST /v1/x HTTP/1.1\r\nhost: a"
REQUEST = HEAD + b'\r\ncontent-length: 9\r\n\r\n{"n": 12}'
PARAMS = b'"kv_transfer_params":{"remote_block_ids":[[1]]}'
ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 56\r\n\r\n{"id":1,' + PARAMS + b"}"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n"


@pytest.mark.parametrize("name", [b"content-length", b"Content-Length"])
def test_a_message_ends_where_its_head_says(name: bytes) -> None:
    head = HEAD + b"\r\n" + name + b": 5"
    assert split(head + b"\r\n\r\nhel") == (head, len(head) + 9)


def test_a_length_in_the_body_is_no_length() -> None:
    assert split(HEAD + b"\r\n\r\n\ncontent-length: 5") == (HEAD, 0)


def test_a_part_of_a_head_is_none() -> None:
    assert split(HEAD + b"\r\n\r") is None


class Wire:
    """A client whose transport, engines and legs note what they are told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []
        self.written = b""
        self.aborted: list[str] = []
        self.client = Client(repeat(self._engine("P")), repeat(self._engine("D")))
        self.client.connection_made(SimpleNamespace(write=self._write, abort=lambda: self.aborted.append("client")))  # type: ignore[arg-type]

    def _write(self, data: bytes) -> None:
        self.written += data

    def _engine(self, name: str) -> Any:
        def ask(request: Any, reader: Client) -> None:
            self.asked.append((name, b"".join(request)))
            reader.leg = SimpleNamespace(abort=lambda: self.aborted.append(name))  # type: ignore[assignment]

        return SimpleNamespace(ask=ask)


@pytest.fixture
def wire() -> Wire:
    return Wire()


def test_p_is_asked_and_then_d_with_what_p_has_answered(wire: Wire) -> None:
    wire.client.data_received(REQUEST[:-3])
    assert not wire.asked
    wire.client.data_received(REQUEST[-3:])
    assert not wire.client.take(ANSWER[:50])
    assert wire.client.take(ANSWER[50:])
    (p, asked_p), (d, asked_d) = wire.asked
    assert (p, d) == ("P", "D")
    for name, asked in (("do_remote_decode", asked_p), ("remote_block_ids", asked_d)):
        found = split(asked)
        assert found is not None and len(asked) == found[1]
        assert name.encode() in asked and asked.endswith(b',"n": 12}')


@pytest.mark.parametrize("pieces", [[STREAM, b"0\r\n\r\n"], [STREAM, b"0\r", b"\n\r\n"], [STREAM + b"0\r\n\r\n"]])
def test_a_stream_is_passed_on_until_its_last_chunk(wire: Wire, pieces: list[bytes]) -> None:
    _ask_d(wire)
    assert [wire.client.take(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert wire.written == b"".join(pieces)
    wire.client.connection_lost(None)
    assert not wire.aborted, "its leg serves others"


def test_an_answer_with_a_length_is_passed_on_until_its_end(wire: Wire) -> None:
    _ask_d(wire)
    assert [wire.client.take(piece) for piece in (ANSWER[:60], ANSWER[60:])] == [False, True]
    assert wire.written == ANSWER


def test_a_client_that_leaves_takes_its_leg_along(wire: Wire) -> None:
    wire.client.data_received(REQUEST)
    wire.client.connection_lost(None)
    assert wire.aborted == ["P"] and wire.client.is_gone


def test_an_engine_that_goes_takes_the_client_along(wire: Wire) -> None:
    _ask_d(wire)
    wire.client.lose()
    assert wire.aborted == ["client"]


def _ask_d(wire: Wire) -> None:
    wire.client.data_received(REQUEST)
    assert wire.client.take(ANSWER)
