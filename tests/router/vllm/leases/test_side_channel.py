"""Side channels that answer, that are silent, and that are none."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import msgspec
import pytest
import zmq
import zmq.asyncio
from msgspec.structs import replace

from baton_serve.core.net import vllm_handshakes
from baton_serve.core.process.task_end import end_task
from baton_serve.core.protocol.token_keys import vllm_handshake_key
from baton_serve.router.vllm.leases import side_channel
from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from baton_serve.router.vllm.leases.side_channel import SideChannels
from baton_serve.router.vllm.leases.side_channel_facts import SideChannelError, SideChannelReason
from baton_serve.workers.vllm.handshakes import HandshakeServer
from tests.kits.patience import PATIENCE_S

HOST = "127.0.0.1"
#: Seconds that a test waits in vain.
BRIEF_S = 3.0
#: How ZMQ's library begins.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
READY = b"\x04\x06\x05READY"


class Server:
    """What vLLM's listener is asked, and what it answers."""

    def __init__(self, engine_id: str, answers: bool) -> None:
        self._socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
        self.port = self._socket.bind_to_random_port(f"tcp://{HOST}")
        self.asked: list[tuple[int, int]] = []
        self._engine_id = engine_id
        self._answers = answers

    async def serve(self) -> None:
        while True:
            identity, empty, question = await self._socket.recv_multipart()
            message, *rank = msgspec.msgpack.decode(question)
            assert (empty, message) == (b"", b"get_meta_msg")
            self.asked.append((rank[0], rank[1]))
            if self._answers:
                await self._socket.send_multipart([identity, b"", self._payload(rank), msgspec.msgpack.encode(1.5)])

    def _payload(self, rank: list[int]) -> bytes:
        metadata = {"engine_id": self._engine_id, "agent_metadata": bytes(rank)}
        packed = msgspec.msgpack.encode(metadata)
        return msgspec.msgpack.encode({"compatibility_hash": "c0ffee", "agent_metadata_bytes": packed})

    def close(self) -> None:
        self._socket.close(linger=0)


@asynccontextmanager
async def server(engine_id: str = "e1", *, answers: bool = True) -> AsyncIterator[Server]:
    made = Server(engine_id, answers)
    serving = asyncio.create_task(made.serve())
    try:
        yield made
    finally:
        await end_task(serving)
        made.close()


@pytest.fixture
def patient() -> SideChannels:
    return SideChannels(timeout_s=PATIENCE_S)


@pytest.fixture
def brief() -> SideChannels:
    return SideChannels(timeout_s=BRIEF_S)


async def failure(channels: SideChannels, port: int, host: str = HOST) -> SideChannelError:
    with pytest.raises(SideChannelError) as caught:
        await channels.ask_first(host, port)
    return caught.value


@pytest.mark.parametrize("host", [HOST, "localhost"])
async def test_the_first_rank_speaks_for_its_engine(patient: SideChannels, host: str) -> None:
    async with server() as one:
        facts = await patient.ask_first(host, one.port)
        assert (facts.compatibility_hash, facts.engine_id, one.asked) == ("c0ffee", "e1", [(0, 0)])


async def test_all_ranks_are_asked_and_no_others(patient: SideChannels) -> None:
    async with server() as one:
        where = RemoteEngine(engine_id="e1", host=HOST, port=one.port, tp_size=2, pp_size=2)
        ranks = [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert await patient.ask_all(where) == [bytes(rank) for rank in ranks]
        assert one.asked == ranks


async def test_another_engine_is_not_asked_for_ranks_that_it_may_lack(patient: SideChannels) -> None:
    async with server("other") as one:
        where = RemoteEngine(engine_id="e1", host=HOST, port=one.port, tp_size=2)
        with pytest.raises(SideChannelError, match="e1 is gone: another one answers") as caught:
            await patient.ask_all(where)
        assert (caught.value.reason, one.asked) == (SideChannelReason.OTHER_ENGINE, [(0, 0)])


async def test_the_metadata_of_all_ranks_together_is_bounded(
    patient: SideChannels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_channel, "MAX_ANSWERS_BYTES", 5)
    async with server() as one:
        where = RemoteEngine(engine_id="e1", host=HOST, port=one.port, tp_size=4)
        with pytest.raises(SideChannelError, match="more than 5 bytes"):
            await patient.ask_all(where)
        assert len(one.asked) == 3


async def test_a_silent_side_channel_is_told_from_one_that_is_not_there(brief: SideChannels, free_port: int) -> None:
    nothing = await failure(brief, free_port)
    assert nothing.reason is SideChannelReason.NO_ANSWER
    assert str(nothing).startswith(f"nothing answers on {HOST}:{free_port}: set VLLM_NIXL_SIDE_CHANNEL_HOST")
    async with server(answers=False) as one:
        silent = await failure(brief, one.port)
        assert "takes questions and does not answer" in str(silent)


async def test_a_port_of_something_else_is_named(brief: SideChannels) -> None:
    with socket.create_server((HOST, 0)) as other:
        error = await failure(brief, other.getsockname()[1])
        assert "does not speak ZMQ" in str(error)


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        (b"HTTP/1.1 400 Bad Request" + bytes(64), "does not speak ZMQ"),
        (b"\xff" + bytes(8) + b"\x7f\x01\x00" + bytes(52), "does not speak ZMQ"),
        (GREETING + b"\x04\x06\x05ERROR", "does not speak ZMQ"),
        (GREETING + READY + b"\x02" + (1 << 40).to_bytes(8), "answered what is no answer"),
        (GREETING + READY + b"\x01\x00" * 99, "answered what is no answer"),
        (GREETING + READY + b"\x01\x00\x00\x03", "closed the connection"),
        (GREETING + READY + b"\x00\x00", "not as vLLM's side channel does"),
        (GREETING + READY + b"\x04\x05\x04PING\x01\x00\x00\x02<>", "not as vLLM's side channel does"),
    ],
)
async def test_bytes_that_are_no_answer_are_refused(patient: SideChannels, told: bytes, meant: str) -> None:
    ended = asyncio.Event()

    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(told)
        writer.write_eof()
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(tell, HOST, 0) as other:
        assert meant in str(await failure(patient, other.sockets[0].getsockname()[1]))
        await asyncio.wait_for(ended.wait(), PATIENCE_S)


async def test_a_host_without_an_address_is_named(patient: SideChannels) -> None:
    error = await failure(patient, 5600, "no-such-host.invalid")
    assert str(error).startswith("the host no-such-host.invalid of a side channel has no address")


async def test_a_silent_side_channel_delays_no_other(patient: SideChannels) -> None:
    async with server(answers=False) as silent, server() as one:
        waiting = [asyncio.create_task(patient.ask_first(HOST, silent.port)) for _ in range(20)]
        assert (await patient.ask_first(HOST, one.port)).engine_id == "e1"
        assert not any(task.done() for task in waiting)
        for task in waiting:
            await end_task(task)


async def test_a_process_without_room_for_a_socket_says_so(
    patient: SideChannels, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_room(*_arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "open_connection", no_room)
    error = await failure(patient, 5600)
    assert error.reason is SideChannelReason.NO_ANSWER
    assert str(error) == f"{HOST}:5600 cannot be asked: [Errno 24] Too many open files"


# Handshakes over HTTP.

TOKEN_KEY = vllm_handshake_key("sesame")


@contextmanager
def over_http(ranks: Iterable[tuple[int, int]], engine_id: str = "e1") -> Iterator[int]:
    """A server with Baton's connector, whose side channel is closed; its port."""
    server = HandshakeServer(HOST, 0, TOKEN_KEY)
    payloads = {}
    for rank in ranks:
        metadata = msgspec.msgpack.encode({"engine_id": engine_id, "agent_metadata": bytes(rank)})
        payload = {"compatibility_hash": "c0ffee", "agent_metadata_bytes": metadata, "fence": {"checks": True}}
        payloads[rank] = msgspec.msgpack.encode(payload)
    server.start(payloads)
    try:
        yield server.port
    finally:
        server.stop()


async def test_with_the_token_a_closed_side_channel_is_not_needed(free_port: int) -> None:
    ranks = [(0, 0), (0, 1)]
    patient = SideChannels(TOKEN_KEY, PATIENCE_S)
    with over_http(ranks) as port:
        facts = await patient.ask_first(HOST, free_port, port)
        assert (facts.compatibility_hash, facts.engine_id, facts.has_fence) == ("c0ffee", "e1", True)
        where = RemoteEngine(engine_id="e1", host=HOST, port=free_port, handshake_port=port, tp_size=2)
        assert await patient.ask_all(where) == [bytes(rank) for rank in ranks]
        with pytest.raises(SideChannelError, match="e2 is gone: another one answers"):
            await patient.ask_all(replace(where, engine_id="e2"))


async def test_what_ranks_say_over_http_has_the_same_bound(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_channel, "MAX_ANSWERS_BYTES", 3)
    with over_http([(0, 0), (0, 1)]) as port:
        where = RemoteEngine(engine_id="e1", host=HOST, port=free_port, handshake_port=port, tp_size=2)
        with pytest.raises(SideChannelError, match="more than 3 bytes"):
            await SideChannels(TOKEN_KEY, PATIENCE_S).ask_all(where)
        monkeypatch.setattr(vllm_handshakes, "MAX_ANSWERS_BYTES", 3)
        with pytest.raises(SideChannelError, match="say more than 3 bytes"):
            await SideChannels(TOKEN_KEY, PATIENCE_S).ask_all(where)


async def test_another_engine_is_not_asked_over_http_for_ranks_that_it_may_lack(free_port: int) -> None:
    with over_http([(0, 0)], "other") as port:
        where = RemoteEngine(engine_id="e1", host=HOST, port=free_port, handshake_port=port, tp_size=2)
        with pytest.raises(SideChannelError, match="e1 is gone: another one answers"):
            await SideChannels(TOKEN_KEY, PATIENCE_S).ask_all(where)


async def test_a_router_without_the_token_says_so_or_asks_the_side_channel(patient: SideChannels) -> None:
    with over_http([(0, 0)]) as port:
        async with server() as one:
            with pytest.raises(SideChannelError, match="this router has none") as caught:
                await patient.ask_first(HOST, one.port, port)
            assert caught.value.reason is SideChannelReason.CANNOT_ASK
            where = RemoteEngine(engine_id="e1", host=HOST, port=one.port, handshake_port=port)
            assert await patient.ask_all(where) == [bytes(2)]
            assert one.asked == [(0, 0)]


async def test_a_router_with_another_token_is_told_nothing(free_port: int) -> None:
    patient = SideChannels(vllm_handshake_key("other"), PATIENCE_S)
    with over_http([(0, 0)]) as port, pytest.raises(SideChannelError, match="another internal token") as caught:
        await patient.ask_first(HOST, free_port, port)
    assert caught.value.reason is SideChannelReason.NO_ANSWER
