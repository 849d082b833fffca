"""Handshakes over HTTP: who is answered, what vLLM is told, and what ends nothing."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest

from baton_serve.core.net.vllm_handshakes import Handshake, HandshakeFailedError, HandshakeReason, ask
from baton_serve.core.protocol.token_keys import hello_key, vllm_handshake_key
from baton_serve.core.protocol.vllm_handshake import (
    NotProvenError,
    RankFacts,
    ask_proof,
    authorization,
    new_nonce,
    seal,
    unseal,
)
from baton_serve.workers.vllm.handshakes import HandshakeServer
from baton_serve.workers.vllm.peers import MAX_ENGINES, ClosedSideChannelError, Peers, handshake_port
from baton_serve.workers.vllm.replay import replaying, with_names

HOST = "127.0.0.1"
KEY = vllm_handshake_key("sesame")
OTHER_KEY = vllm_handshake_key("other")
PAYLOADS = {(0, 0): b"first", (0, 1): b"second", (1, 0): b"third"}


@contextmanager
def serving() -> Iterator[HandshakeServer]:
    server = HandshakeServer(HOST, 0, KEY)
    server.start(PAYLOADS)
    try:
        yield server
    finally:
        server.stop()


async def http(port: int, request: bytes) -> tuple[int, bytes]:
    """The status and the body of one answer on a connection of its own."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().splitlines() if line.startswith(b"content-length"))
    body = await reader.readexactly(length)
    writer.close()
    return int(head.split()[1]), body


async def get(port: int, path: str, *headers: str, host: str = "") -> tuple[int, bytes]:
    lines = "".join(f"{header}\r\n" for header in headers)
    return await http(port, f"GET {path} HTTP/1.1\r\nHost: {host or f'{HOST}:{port}'}\r\n{lines}\r\n".encode())


async def reason(port: int, *, key: bytes = KEY, host: str = HOST, rank: tuple[int, int] = (0, 0)) -> HandshakeReason:
    with pytest.raises(HandshakeFailedError) as caught:
        await ask(host, port, key, [rank])
    assert "sesame" not in str(caught.value)
    return caught.value.reason


async def test_every_rank_is_told_its_own_bytes_and_the_clock() -> None:
    with serving() as server:
        before_s = time.perf_counter()
        told = await ask(HOST, server.port, KEY, PAYLOADS)
        limit_s = time.perf_counter() - before_s
    assert told.payloads == PAYLOADS
    assert abs(told.clock_offset_s) < limit_s  # both clocks are that of this process


async def test_a_clock_that_is_ahead_there_is_so_here() -> None:
    with serving() as server:
        told = await ask(HOST, server.port, KEY, [(0, 0)], clock=lambda: time.perf_counter() - 1000)
    assert told.clock_offset_s == pytest.approx(1000, abs=5)


async def test_a_stranger_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as server:
        for headers in ((), ("Authorization: Bearer sesame",), (f"Authorization: Baton {'0' * 32}.{'0' * 64}",)):
            assert await get(server.port, "/kv/vllm/handshake/0/0", *headers) == (401, b"")
        # ranks that are not there look the same without a proof
        assert await get(server.port, "/kv/vllm/handshake/7/7") == (401, b"")
        assert await reason(server.port, key=OTHER_KEY) is HandshakeReason.OTHER_TOKEN
        assert await reason(server.port, key=hello_key("sesame")) is HandshakeReason.OTHER_TOKEN
        assert (await ask(HOST, server.port, KEY, [(0, 0)])).payloads == {(0, 0): b"first"}
    assert "Refused a handshake from 127.0.0.1" in caplog.text
    assert "sesame" not in caplog.text


async def test_a_proof_for_another_address_is_of_no_use() -> None:
    """Who is named in place of P passes the question on to P, and is told nothing."""
    with serving() as server:
        status, challenge = await get(server.port, "/kv/vllm/challenge")
        assert status == 200
        path, nonce, elsewhere = "/kv/vllm/handshake/0/0", new_nonce(), "evil:1"
        header = f"Authorization: {authorization(nonce, ask_proof(KEY, elsewhere, challenge.decode(), nonce, path))}"
        assert await get(server.port, path, header, host=elsewhere) == (403, b"")
        assert await get(server.port, path, header) == (401, b"")  # passed on under P's own name
        other_path = path.replace("0/0", "0/1")
        assert await get(server.port, other_path, header, host=elsewhere) == (401, b"")


async def test_a_question_of_an_earlier_start_is_refused() -> None:
    with serving() as first:
        _, challenge = await get(first.port, "/kv/vllm/challenge")
    with serving() as second:
        path, nonce, place = "/kv/vllm/handshake/0/0", new_nonce(), f"{HOST}:{second.port}"
        header = f"Authorization: {authorization(nonce, ask_proof(KEY, place, challenge.decode(), nonce, path))}"
        assert await get(second.port, path, header) == (401, b"")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x00\x01\x02\r\n\r\n", 400),
        (b"GET /kv/vllm/handshake/0/0 HTTP/1.1\r\n\r\n", 400),
        (b"GET /kv/vllm/handshake/x/y HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /kv/vllm/handshake/99999/0 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"POST /kv/vllm/challenge HTTP/1.1\r\nHost: x\r\ncontent-length: 2\r\n\r\nab", 405),
        (b"GET /kv/vllm/handshake/0/0 HTTP/1.1\r\nHost: x\r\nAuthorization: Baton \xff\xfe\r\n\r\n", 401),
        (b"GET /" + b"x" * (16 << 10) + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    ],
)
async def test_a_malformed_question_is_answered_and_ends_nothing(request_bytes: bytes, status: int) -> None:
    with serving() as server:
        assert (await http(server.port, request_bytes))[0] == status
        assert (await ask(HOST, server.port, KEY, [(0, 0)])).payloads == {(0, 0): b"first"}


async def test_what_cannot_be_asked_says_why() -> None:
    with serving() as server:
        assert await reason(server.port, rank=(5, 0)) is HandshakeReason.NO_SUCH_RANK
        assert await reason(server.port, host="localhost") is HandshakeReason.OTHER_ADDRESS
        port = server.port
    assert await reason(port) is HandshakeReason.NO_ANSWER
    for host in ("x\r\ny: z", "a/b", ""):
        assert await reason(1, host=host) is HandshakeReason.NO_ANSWER
    for number in (0, 65536):
        assert await reason(number) is HandshakeReason.NO_ANSWER


@asynccontextmanager
async def impostor(*answers: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Answers one after the other; its port, and what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for body in answers:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1], asked


async def test_who_does_not_know_the_token_is_not_believed_and_not_shown_it() -> None:
    challenge = new_nonce().encode()
    forged = seal(OTHER_KEY, "0" * 64, RankFacts(b"his memory", 0.0))
    for answer in (forged, b"", b"x" * 100):
        async with impostor(challenge, answer) as (port, asked):
            assert await reason(port) is HandshakeReason.OTHER_TOKEN
        assert len(asked) == 2
        assert b"sesame" not in b"".join(asked)
    async with impostor(b"no challenge") as (port, asked):
        assert await reason(port) is HandshakeReason.NOT_HANDSHAKES
    assert b"Authorization" not in asked[0]


def test_an_answer_fits_one_question_and_cannot_be_changed() -> None:
    facts = RankFacts(b"memory", 1.5)
    sealed = seal(KEY, "1" * 64, facts)
    assert unseal(KEY, "1" * 64, sealed) == facts
    for proof, answer in (("2" * 64, sealed), ("1" * 64, sealed[:-1] + b"x"), ("1" * 64, b"")):
        with pytest.raises(NotProvenError):
            unseal(KEY, proof, answer)


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on {HOST} port {port}"):
            HandshakeServer(HOST, port, KEY)


def test_after_the_stop_the_port_is_closed_and_no_thread_is_left() -> None:
    with serving() as server:
        port = server.port
        assert any(thread.name == "baton-handshakes" for thread in threading.enumerate())
    assert not any(thread.name == "baton-handshakes" for thread in threading.enumerate())
    with socket.socket() as asker:
        assert asker.connect_ex((HOST, port)) != 0
    unused = HandshakeServer(HOST, 0, KEY)
    unused.stop()
    unused.stop()


def test_what_vllms_environment_lacks_is_not_needed() -> None:
    """The router's packages are not in it."""
    lacking = "orjson", "xxhash", "jinja2", "yaml", "rich"
    modules = "baton_serve.workers.vllm.handshakes, baton_serve.workers.vllm.peers, baton_serve.workers.vllm.replay"
    code = f"import sys; sys.modules.update(dict.fromkeys({lacking}, None)); import {modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


# What a worker asks.


def test_the_port_of_a_hand_off_is_checked() -> None:
    params: dict[str, Any] = {"remote_engine_id": "e1", "handshake_port": 6600}
    assert handshake_port(params) == ("e1", 6600)
    assert handshake_port(None) is handshake_port({}) is None
    for wrong in (0, 65536, -1, "6600", True, 1.5, None, [1]):
        assert handshake_port({**params, "handshake_port": wrong}) is None
    assert handshake_port({**params, "remote_engine_id": 5}) is None


def test_a_worker_asks_over_http_where_both_have_the_token() -> None:
    with serving() as server:
        peers = Peers(KEY, asks_side_channels=True)
        assert peers.ask("e1", HOST, [(0, 1)]) is None  # a stock P
        peers.learn({"e1": server.port})
        told = peers.ask("e1", HOST, [(0, 1)])
        assert told is not None and told.payloads == {(0, 1): b"second"}
        without_token = Peers(None, asks_side_channels=True)
        without_token.learn({"e1": server.port})
        assert without_token.ask("e1", HOST, [(0, 1)]) is None


def test_there_is_no_second_try_on_the_side_channel() -> None:
    with serving() as server:
        peers = Peers(OTHER_KEY, asks_side_channels=True)
        peers.learn({"e1": server.port})
        with pytest.raises(HandshakeFailedError):
            peers.ask("e1", HOST, [(0, 0)])
    closed = Peers(KEY, asks_side_channels=False)
    with pytest.raises(ClosedSideChannelError, match="BATON_SIDE_CHANNEL is closed"):
        closed.ask("e1", HOST, [(0, 0)])


def test_engines_that_clients_invent_do_not_pile_up() -> None:
    with serving() as server:
        peers = Peers(KEY, asks_side_channels=True)
        peers.learn({"old": server.port, "kept": server.port})
        peers.learn({str(number): 1 for number in range(MAX_ENGINES - 1)})
        assert peers.ask("old", HOST, [(0, 0)]) is None
        assert peers.ask("kept", HOST, [(0, 0)]) is not None


# What vLLM is told.


def zmq_ctx(_kind: int, path: str) -> Any:
    raise AssertionError(f"{path} was opened")


def vllms_handshake(worker: str, path: str, *, rank: tuple[int, int] = (0, 0)) -> tuple[str, bytes, float]:
    """As vLLM's method: it knows ``zmq_ctx`` as a global name, and measures the offset of the clock."""
    with zmq_ctx(3, path) as channel:
        channel.setsockopt(27, 5000)
        began_s = time.perf_counter()
        channel.send(msgspec.msgpack.encode((b"get_meta_msg", *rank)))
        payload, clock = channel.recv_multipart()
        ended_s = time.perf_counter()
    return worker, payload, msgspec.msgpack.decode(clock) - (began_s + ended_s) / 2


def test_vllms_handshake_is_told_what_was_fetched_and_opens_nothing() -> None:
    handshake = Handshake(PAYLOADS, 1000.0)
    method = replaying(vllms_handshake, handshake)
    worker, payload, offset_s = method("worker", "tcp://h:1", rank=(1, 0))
    assert (worker, payload) == ("worker", b"third")
    assert offset_s == pytest.approx(1000, abs=1)  # however long after the answer it is used
    with pytest.raises(KeyError):
        method("worker", "tcp://h:1", rank=(9, 9))
    with pytest.raises(AssertionError, match="was opened"):  # vLLM's own is as it was
        vllms_handshake("worker", "tcp://h:1")


def test_a_name_that_vllm_does_not_use_is_an_error() -> None:
    with pytest.raises(KeyError, match="zmq_context"):
        with_names(vllms_handshake, {"zmq_context": None})
