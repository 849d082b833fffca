"""The handshake pool against real HTTP servers: ours, and others that hang, refuse, lie and talk nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton_serve.core.net.served.config import PortConfig
from baton_serve.core.net.served.port import HttpPort
from baton_serve.core.net.sockets import bind, port_of
from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.core.protocol.handshake import WIRE_VERSION, Handshake, RankMetadata
from baton_serve.core.protocol.steps import Connect, Connected, Disconnect
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.workers.handshake import server as handshake_server
from baton_serve.workers.handshake.fetch import MAX_ANSWER_BYTES
from baton_serve.workers.handshake.peer_view import (
    MAX_TOLD_CHARS,
    MAX_TOLD_ERRORS,
    PeerEngineState,
    PeerView,
    with_peers,
)
from baton_serve.workers.handshake.pool import HandshakeOptions, HandshakePool
from baton_serve.workers.handshake.server import handshake_bytes, handshake_router
from baton_serve.workers.rank_protocol.errors import MAX_LINE_CHARS
from baton_serve.workers.rank_protocol.transfer_errors import HandshakeError, HandshakeReason
from tests.kits.patience import PATIENCE_S
from tests.kits.transfer.shards import engine as engine_of
from tests.kits.transfer.shards import shards

TOKEN = "s3cret"
HASH = "0" * 32
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def metadata(engine_id: str = "e1", rank: int = 0, num_ranks: int = 1) -> RankMetadata:
    return engine_of(shards(12, 2, num_ranks, 1), 16, engine_id)[rank]


def params(
    port: int, engine_id: str = "e1", host: str = "127.0.0.1", tp_size: int = 1, pp_size: int = 1, dcp_size: int = 1
) -> KVTransferParams:
    return KVTransferParams(
        do_remote_prefill=True,
        do_remote_decode=False,
        remote_engine_id=engine_id,
        remote_request_id="r",
        remote_host=host,
        remote_port=port,
        remote_block_ids=[[0]],
        remote_num_tokens=1,
        tp_size=tp_size,
        pp_size=pp_size,
        dcp_size=dcp_size,
    )


class Engine:
    """A worker's internal port with ``num_ranks`` ranks; may be restarted as another engine on the same port."""

    def __init__(self, engine_id: str = "e1", num_ranks: int = 1, token: str = TOKEN) -> None:
        self.token = token
        self.num_asked = 0
        self.was_asked = asyncio.Event()
        self.ranks = [metadata(engine_id, rank, num_ranks) for rank in range(num_ranks)]
        self.port = 0

    def answer(self, rank: int) -> bytes | None:
        self.num_asked += 1
        self.was_asked.set()
        return handshake_bytes(self.ranks[rank], HASH) if rank < len(self.ranks) else None

    def app(self) -> FastAPI:
        app = FastAPI()
        app.include_router(handshake_router(self.answer, SecretStr(self.token)))
        return app


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[Engine]:
    async with served_app(engine.app()) as engine.port:
        yield engine


@asynccontextmanager
async def served_app(app: Starlette) -> AsyncIterator[int]:
    """The port where it is served."""
    bound = bind("127.0.0.1", 0)
    port = HttpPort(app, bound, PortConfig(keep_alive_s=60))
    await port.start()
    try:
        yield port_of(bound)
    finally:
        await port.stop(PATIENCE_S)


@asynccontextmanager
async def raw_server(handler: Handler) -> AsyncIterator[int]:
    """The port of a server that answers whatever ``handler`` writes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def answering(body: bytes, status: str = "200 OK", header: str = "") -> Handler:
    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{header}\r\n".encode() + body)
        await writer.drain()

    return handler


class Hanging:
    """A server that takes every request and answers none."""

    def __init__(self) -> None:
        self.port = 0
        self.num_asked = 0
        self._asked = asyncio.Condition()

    async def handle(self, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        async with self._asked:
            self.num_asked += 1
            self._asked.notify_all()
        await reader.read()  # until whoever asked has had enough

    async def until_asked(self, num_times: int) -> None:
        async with self._asked:
            await self._asked.wait_for(lambda: self.num_asked >= num_times)


@asynccontextmanager
async def met() -> AsyncIterator[tuple[Engine, Ranks]]:
    """An engine that our rank has connected to."""
    async with served(Engine()) as engine, pooled() as ranks:
        await ranks.pool.connect(params(engine.port))
        yield engine, ranks


@asynccontextmanager
async def hanging() -> AsyncIterator[Hanging]:
    server = Hanging()
    async with raw_server(server.handle) as server.port:
        yield server


class Ranks:
    """Our own ranks: they answer every Connect, unless told not to. ``errors`` by rank."""

    def __init__(self, num_ranks: int = 1, errors: dict[int, str] | None = None, *, silent: bool = False) -> None:
        self.sent: list[Connect | Disconnect] = []
        self.asked = asyncio.Event()
        self.now = 1000.0
        self.num_ranks = num_ranks
        self._errors = errors or {}
        self._silent = silent
        self.pool: HandshakePool

    def send(self, message: Connect | Disconnect) -> None:
        self.sent.append(message)
        self.asked.set()
        if isinstance(message, Connect) and not self._silent:
            loop = asyncio.get_running_loop()
            for rank in range(self.num_ranks):
                loop.call_soon(self.answer, message.engine_id, rank, self._errors.get(rank, ""))

    def answer(self, engine_id: str = "e1", rank: int = 0, error: str = "") -> None:
        self.pool.on_connected(rank, Connected(engine_id, error))

    async def until_asked(self) -> None:
        await self.asked.wait()
        self.asked.clear()

    def state(self, engine_id: str = "e1") -> PeerView:
        return self.pool.states()[engine_id]

    def load(self) -> WorkerLoad:
        return with_peers(WorkerLoad(), self.pool.states())


@asynccontextmanager
async def pooled(
    ranks: Ranks | None = None, options: HandshakeOptions | None = None, token: str | None = TOKEN
) -> AsyncIterator[Ranks]:
    ranks = ranks or Ranks()
    ranks.pool = HandshakePool(
        ranks.send,
        local=[metadata("us", rank, ranks.num_ranks) for rank in range(ranks.num_ranks)],
        token=token,
        compatibility_hash=HASH,
        options=options,
        clock=lambda: ranks.now,
    )
    yield ranks
    await ranks.pool.close()


async def reason_of(ranks: Ranks, wanted: KVTransferParams, match: str | None = None) -> HandshakeReason:
    with pytest.raises(HandshakeError, match=match) as caught:
        await ranks.pool.connect(wanted)
    return caught.value.reason


async def test_many_requests_share_one_handshake() -> None:
    async with served(Engine()) as engine, pooled() as ranks:
        await asyncio.gather(*(ranks.pool.connect(params(engine.port)) for _ in range(20)))
        await ranks.pool.connect(params(engine.port))
        assert engine.num_asked == 1
        assert ranks.sent == [Connect("e1", [metadata()])]
        assert ranks.pool.states() == {"e1": PeerView(state=PeerEngineState.CONNECTED)}


async def test_ranks_there_are_asked_at_once_when_the_first_has_answered() -> None:
    """The server answers none of the others before all have been asked."""
    ranks_of_p = [metadata("e1", rank, 4) for rank in range(4)]
    together = asyncio.Event()
    asked: list[int] = []

    async def handler(request: Request) -> Response:
        rank = request.path_params["rank"]
        asked.append(rank)
        if len(asked) == len(ranks_of_p):
            together.set()
        if rank:
            await together.wait()
        return Response(handshake_bytes(ranks_of_p[rank], HASH))

    app = Starlette(routes=[Route("/kv/handshake/{rank:int}", handler)])
    async with served_app(app) as port, pooled() as ranks:
        async with asyncio.timeout(PATIENCE_S):
            await ranks.pool.connect(params(port, tp_size=2, pp_size=2))
        assert asked[0] == 0
        assert ranks.sent == [Connect("e1", ranks_of_p)]


async def test_a_rank_there_that_fails_ends_it_for_the_others() -> None:
    """Rank 2 is refused while rank 1 hangs: the handshake fails now, not after its timeout."""
    asked, left = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> Response:
        rank = request.path_params["rank"]
        if rank == 0:
            return Response(handshake_bytes(metadata("e1", 0, 3), HASH))
        if rank == 2:
            await asked.wait()
            return Response(status_code=404)
        asked.set()
        try:
            await request.receive()  # the body, which is empty
            await request.receive()  # that the other end has gone
        finally:
            left.set()
        return Response()

    app = Starlette(routes=[Route("/kv/handshake/{rank:int}", handler)])
    async with served_app(app) as port, pooled() as ranks:
        async with asyncio.timeout(PATIENCE_S):
            assert await reason_of(ranks, params(port, tp_size=3)) is HandshakeReason.REFUSED
            assert "/kv/handshake/2 answers 404" in ranks.state().error
            await left.wait()
        assert ranks.sent == []


async def test_shards_that_do_not_divide_are_refused_before_a_rank_hears_of_them() -> None:
    async with served(Engine(num_ranks=2)) as engine, pooled() as ranks:
        first, second = engine.ranks
        engine.ranks = [first, msgspec.structs.replace(second, shard=first.shard)]
        reason = await reason_of(ranks, params(engine.port, tp_size=2), r"heads 0-12.* here, .*heads 0-6.* there")
        assert reason is HandshakeReason.INCOMPATIBLE
        assert ranks.sent == []


@pytest.mark.parametrize(("num_ranks", "failing"), [(1, 0), (2, 1)])
async def test_when_one_of_our_ranks_cannot_connect_the_others_are_told_to_disconnect(
    num_ranks: int, failing: int
) -> None:
    ranks = Ranks(num_ranks, errors={failing: "no transport"})
    async with served(Engine()) as engine, pooled(ranks):
        assert await reason_of(ranks, params(engine.port), f"rank {failing}: no transport") is HandshakeReason.RANK
        assert ranks.sent == [Connect("e1", [metadata()]), Disconnect("e1")]


async def test_a_late_answer_of_a_rank_is_not_taken_for_that_to_the_next_attempt() -> None:
    """Rank 1 fails at once; rank 0's answer to the same ``Connect`` comes while the next one is under way."""
    async with served(Engine()) as engine, pooled(Ranks(num_ranks=2, silent=True)) as ranks:
        first = asyncio.create_task(reason_of(ranks, params(engine.port)))
        await ranks.until_asked()
        ranks.answer(rank=1, error="no")
        assert await first is HandshakeReason.RANK
        ranks.asked.clear()
        ranks.now += 1.0
        second = asyncio.create_task(ranks.pool.connect(params(engine.port)))
        await ranks.until_asked()
        ranks.answer(rank=1)
        ranks.answer(rank=0, error="late")
        ranks.answer(rank=0)
        await second
        assert ranks.state().state is PeerEngineState.CONNECTED


async def test_nobody_there() -> None:
    async with raw_server(answering(b"")) as port:
        pass
    async with pooled() as ranks:
        assert await reason_of(ranks, params(port)) is HandshakeReason.REFUSED


async def test_a_server_that_hangs_holds_up_only_its_own_requests() -> None:
    async with served(Engine()) as engine, hanging() as hung, pooled(options=HandshakeOptions(timeout_s=0.3)) as ranks:
        other = asyncio.create_task(reason_of(ranks, params(hung.port, "e2")))
        await ranks.pool.connect(params(engine.port))
        assert not other.done()
        assert await other is HandshakeReason.TIMEOUT
        assert (ranks.state("e1").state, ranks.state("e2").state) == (PeerEngineState.CONNECTED, PeerEngineState.FAILED)


async def test_a_rank_of_ours_that_never_answers_times_out() -> None:
    options = HandshakeOptions(timeout_s=0.3)
    async with served(Engine()) as engine, pooled(Ranks(silent=True), options) as ranks:
        assert await reason_of(ranks, params(engine.port)) is HandshakeReason.TIMEOUT


@pytest.mark.parametrize("token", [None, "", "wrong", "s3cret2", "é"])
async def test_the_wrong_token_is_named(token: str | None) -> None:
    async with served(Engine()) as engine, pooled(token=token) as ranks:
        assert await reason_of(ranks, params(engine.port)) is HandshakeReason.UNAUTHORIZED
        assert engine.num_asked == 0


async def test_a_token_need_not_be_ascii() -> None:
    async with served(Engine(token="pässwörd")) as engine, pooled(token="pässwörd") as ranks:
        await ranks.pool.connect(params(engine.port))


async def test_a_restarted_engine_is_another_engine() -> None:
    async with served(Engine("old")) as engine, pooled() as ranks:
        await ranks.pool.connect(params(engine.port, "old"))
        engine.ranks = [metadata("new")]
        assert await reason_of(ranks, params(engine.port, "older")) is HandshakeReason.WRONG_ENGINE
        await ranks.pool.connect(params(engine.port, "new"))
        assert ranks.state("new").state is PeerEngineState.CONNECTED
        assert ranks.state("older").reason == "wrong_engine"


def lying(**changes: object) -> bytes:
    true = Handshake(
        wire_version=WIRE_VERSION, engine_id="e1", compatibility_hash=HASH, metadata=msgspec.msgpack.encode(metadata())
    )
    return msgspec.msgpack.encode(msgspec.structs.replace(true, **changes))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", HandshakeReason.GARBAGE),
        (b"<html>", HandshakeReason.GARBAGE),
        (b"\xc1" * 50, HandshakeReason.GARBAGE),
        (b"x" * (MAX_ANSWER_BYTES + 1), HandshakeReason.GARBAGE),
        (lying(metadata=b"\x01"), HandshakeReason.GARBAGE),
        (lying(metadata=msgspec.msgpack.encode(msgspec.structs.replace(metadata(), rank=1))), HandshakeReason.GARBAGE),
        (lying(metadata=msgspec.msgpack.encode(metadata("e2"))), HandshakeReason.GARBAGE),
        (lying(wire_version=WIRE_VERSION + 1, metadata=b"\x01"), HandshakeReason.INCOMPATIBLE),
        (lying(engine_id="e2", metadata=b"\x01"), HandshakeReason.WRONG_ENGINE),
        (lying(compatibility_hash="2" * 32, metadata=b"\x01"), HandshakeReason.INCOMPATIBLE),
    ],
    ids=lambda value: value.value if isinstance(value, HandshakeReason) else str(len(value)),
)
async def test_answers_that_are_none(body: bytes, reason: HandshakeReason) -> None:
    async with raw_server(answering(body)) as port, pooled() as ranks:
        assert await reason_of(ranks, params(port)) is reason


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("500 No", HandshakeReason.REFUSED),
        ("403 No", HandshakeReason.UNAUTHORIZED),
        ("999999 No", HandshakeReason.GARBAGE),
    ],
)
async def test_statuses(status: str, reason: HandshakeReason) -> None:
    async with raw_server(answering(b"", status)) as port, pooled() as ranks:
        assert await reason_of(ranks, params(port)) is reason


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + lying(),
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (MAX_ANSWER_BYTES + 2**17),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=["nothing", "cut off", "interim", "endless head", "another protocol", "upgrade"],
)
async def test_bytes_that_are_no_answer(raw: bytes) -> None:
    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        with contextlib.suppress(ConnectionError):
            await writer.drain()

    async with raw_server(handler) as port, pooled() as ranks:
        assert await reason_of(ranks, params(port)) is HandshakeReason.GARBAGE


async def test_an_answer_in_chunks_after_an_interim_one() -> None:
    body = lying()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:50], body[50:], b""))

    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        await writer.drain()

    async with raw_server(handler) as port, pooled() as ranks:
        await ranks.pool.connect(params(port))


async def test_a_name_that_dns_cannot_have_is_refused() -> None:
    async with pooled() as ranks:
        assert await reason_of(ranks, params(80, host="a" * 100)) is HandshakeReason.REFUSED


async def test_no_redirect_is_followed() -> None:
    """The token goes where the router said, not where an answer says."""
    async with served(Engine()) as engine:
        header = f"Location: http://127.0.0.1:{engine.port}/kv/handshake/0\r\n"
        async with raw_server(answering(b"", "307 Go", header)) as port, pooled() as ranks:
            assert await reason_of(ranks, params(port)) is HandshakeReason.REFUSED
            assert engine.num_asked == 0


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a/b",
        "u@h",
        "h:1",
        "h?x",
        "h#x",
        "h h",
        "h\r\nX: y",
        "[::1]",
        "fe80::1%25x",
        "-a",
        "a.",
        "\u2603",
        "a" * 254,
    ],
)
async def test_hosts_that_are_none(host: str) -> None:
    async with pooled() as ranks:
        assert await reason_of(ranks, params(80, host=host)) is HandshakeReason.BAD_ADDRESS


@pytest.mark.parametrize(
    ("tp_size", "pp_size", "dcp_size"),
    [(0, 1, 1), (65, 1, 1), (1, 0, 1), (1, 65, 1), (8, 9, 1), (-2, -2, 1), (1, 1, 2), (1, 1, 0)],
)
async def test_sizes_that_are_none(tp_size: int, pp_size: int, dcp_size: int) -> None:
    async with pooled() as ranks:
        wanted = params(80, tp_size=tp_size, pp_size=pp_size, dcp_size=dcp_size)
        assert await reason_of(ranks, wanted) is HandshakeReason.INCOMPATIBLE


async def test_after_a_failure_it_is_tried_again_but_not_at_once() -> None:
    async with served(Engine("other")) as engine, pooled() as ranks:
        for wait_s in (0.1, 0.2, 0.4):
            asked = engine.num_asked
            assert await reason_of(ranks, params(engine.port)) is HandshakeReason.WRONG_ENGINE
            assert await reason_of(ranks, params(engine.port)) is HandshakeReason.WRONG_ENGINE
            assert engine.num_asked == asked + 1
            ranks.now += wait_s
        engine.ranks = [metadata()]
        await ranks.pool.connect(params(engine.port))


async def test_a_request_that_leaves_does_not_end_the_handshake() -> None:
    async with served(Engine()) as engine, pooled(Ranks(silent=True)) as ranks:
        leaver = asyncio.create_task(ranks.pool.connect(params(engine.port)))
        stayer = asyncio.create_task(ranks.pool.connect(params(engine.port)))
        await ranks.asked.wait()
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        ranks.answer()
        await stayer
        assert ranks.state().state is PeerEngineState.CONNECTED


async def test_forgetting_disconnects_and_fails_who_waits() -> None:
    async with served(Engine()) as engine, pooled(Ranks(silent=True)) as ranks:
        waiter = asyncio.create_task(reason_of(ranks, params(engine.port)))
        await ranks.asked.wait()
        ranks.pool.forget("e1")
        assert await waiter is HandshakeReason.FORGOTTEN
        assert set(ranks.sent[1:]) == {Disconnect("e1")}
        assert ranks.pool.states() == {}
        ranks.answer()


async def test_the_engine_unused_for_longest_is_forgotten_but_none_that_is_read_from() -> None:
    options = HandshakeOptions(max_engines=3)
    async with served(Engine()) as engine, pooled(options=options) as ranks:
        for name in ("a", "b", "c"):
            engine.ranks = [metadata(name)]
            await ranks.pool.connect(params(engine.port, name))
        ranks.pool.read_started("a", 1)
        await ranks.pool.connect(params(engine.port, "b"))
        engine.ranks = [metadata("d")]
        await ranks.pool.connect(params(engine.port, "d"))
        assert ranks.sent[-2] == Disconnect("c")
        assert set(ranks.pool.states()) == {"a", "b", "d"}
        ranks.pool.read_ended("a", 1, failed=False)
        engine.ranks = [metadata("e")]
        await ranks.pool.connect(params(engine.port, "e"))
        assert set(ranks.pool.states()) == {"b", "d", "e"}


async def test_an_engine_that_was_read_from_counts_as_used_then() -> None:
    async with served(Engine()) as engine, pooled(options=HandshakeOptions(max_engines=2)) as ranks:
        for name in ("a", "b"):
            engine.ranks = [metadata(name)]
            await ranks.pool.connect(params(engine.port, name))
        ranks.pool.read_started("a", 1)
        ranks.pool.read_ended("a", 1, failed=False)
        engine.ranks = [metadata("c")]
        await ranks.pool.connect(params(engine.port, "c"))
        assert set(ranks.pool.states()) == {"a", "c"}


async def test_after_a_failed_read_the_engine_is_met_anew() -> None:
    async with served(Engine()) as engine, pooled() as ranks:
        for failed, num_asked in ((False, 1), (True, 2)):
            await ranks.pool.connect(params(engine.port))
            ranks.pool.read_started("e1", 1)
            ranks.pool.read_ended("e1", 1, failed=failed)
            await ranks.pool.connect(params(engine.port))
            assert engine.num_asked == num_asked


async def test_an_engine_with_a_read_that_does_not_end_is_refused_until_it_has() -> None:
    async with met() as (engine, ranks):
        for read_id in (1, 2, 3):
            ranks.pool.read_started("e1", read_id)
        ranks.pool.read_given_up(1)
        ranks.pool.read_given_up(1)
        ranks.pool.read_given_up(2)
        ranks.pool.read_given_up(99)
        why = "2 reads from engine e1 were given up and have not ended"
        assert await reason_of(ranks, params(engine.port), why) is HandshakeReason.STUCK
        assert (ranks.state().reads, ranks.state().stuck, ranks.pool.stats().stuck_reads) == (3, 2, 2)
        assert ranks.load() == WorkerLoad(peers_failed=1, peer_errors={"e1": "stuck: 2 reads have not ended"})
        ranks.pool.read_ended("e1", 3, failed=False)
        ranks.pool.read_ended("e1", 2, failed=False)
        assert await reason_of(ranks, params(engine.port)) is HandshakeReason.STUCK
        ranks.pool.read_ended("e1", 1, failed=False)
        await ranks.pool.connect(params(engine.port))
        assert (engine.num_asked, ranks.state().reads) == (1, 0)


async def test_stuck_reads_are_not_forgotten_with_their_engine() -> None:
    async with met() as (engine, ranks):
        ranks.pool.read_started("e1", 1)
        ranks.pool.read_given_up(1)
        ranks.pool.forget("e1")
        assert await reason_of(ranks, params(engine.port)) is HandshakeReason.STUCK
        ranks.pool.read_ended("e1", 1, failed=True)
        await ranks.pool.connect(params(engine.port))


async def test_a_read_may_be_sent_while_the_engine_is_connected_and_none_of_its_reads_is_stuck() -> None:
    ranks = Ranks(silent=True)
    async with served(Engine()) as engine, pooled(ranks):
        pool = ranks.pool
        assert not pool.is_connected("e1"), "never heard of"
        meeting = asyncio.create_task(pool.connect(params(engine.port)))
        await ranks.until_asked()
        assert not pool.is_connected("e1"), "it is being met"
        ranks.answer()
        await meeting
        assert pool.is_connected("e1") and not pool.is_connected("e2")
        pool.read_started("e1", 1)
        assert pool.is_connected("e1")
        pool.read_given_up(1)
        assert not pool.is_connected("e1"), "a read is stuck"
        pool.read_ended("e1", 1, failed=False)
        assert pool.is_connected("e1")
        ranks.answer(error="it is gone")
        assert not pool.is_connected("e1"), "a rank has lost it"
    async with met() as (_, ranks):
        ranks.pool.forget("e1")
        assert not ranks.pool.is_connected("e1")


async def test_one_engine_that_is_stuck_is_no_reason_to_refuse_another() -> None:
    async with served(Engine()) as engine, pooled() as ranks:
        ranks.pool.read_started("e2", 1)
        ranks.pool.read_given_up(1)
        await ranks.pool.connect(params(engine.port))


async def test_failures_are_told_with_reason_age_and_count() -> None:
    async with served(Engine("other")) as engine, pooled() as ranks:
        await reason_of(ranks, params(engine.port))
        await reason_of(ranks, params(engine.port))
        ranks.now += 2.0
        state = ranks.state()
        assert (state.state, state.reason, state.failure_age_s) == (PeerEngineState.FAILED, "wrong_engine", 2.0)
        assert ranks.pool.stats().failures == {"wrong_engine": 1}
        engine.ranks = [metadata()]
        await ranks.pool.connect(params(engine.port))
        stats = ranks.pool.stats()
        assert (stats.num_done, stats.states) == (1, {"connecting": 0, "connected": 1, "failed": 0})
        assert ranks.state().reason == "wrong_engine"


def test_a_load_report_names_few_failures_the_newest_and_briefly() -> None:
    views = {
        f"e{i}": PeerView(
            state=PeerEngineState.FAILED, reason="refused", error="refused: " + "x" * 500, failure_age_s=i
        )
        for i in range(20)
    }
    views["e20"] = PeerView(state=PeerEngineState.CONNECTED, error="refused: long ago")
    load = with_peers(WorkerLoad(running=3), views)
    assert (load.running, load.peers_failed, load.peers_connected) == (3, 20, 1)
    assert list(load.peer_errors) == [f"e{i}" for i in range(MAX_TOLD_ERRORS)]
    assert {len(text) for text in load.peer_errors.values()} == {MAX_TOLD_CHARS}


async def test_an_engine_that_a_rank_has_lost_is_met_anew() -> None:
    async with met() as (engine, ranks):
        ranks.answer("e1", error="gone")
        ranks.answer("never heard of", error="gone")
        assert (ranks.state().state, ranks.state().error) == (PeerEngineState.FAILED, "lost: rank 0: gone")
        await ranks.pool.connect(params(engine.port))
        assert engine.num_asked == 2
        assert ranks.state().state is PeerEngineState.CONNECTED


@pytest.mark.parametrize("losing", [0, 1])
async def test_an_engine_lost_while_the_handshake_ends_is_not_taken_for_connected(losing: int) -> None:
    """Rank 1 is the last to answer, and before anybody has acted on that one of the two loses the engine."""
    async with served(Engine()) as engine, pooled(Ranks(num_ranks=2, silent=True)) as ranks:
        attempt = asyncio.create_task(reason_of(ranks, params(engine.port)))
        await ranks.until_asked()
        ranks.answer(rank=0)
        ranks.answer(rank=1)
        ranks.answer(rank=losing, error="gone")
        assert await attempt is HandshakeReason.RANK
        assert (ranks.state().state, ranks.state().error) == (PeerEngineState.FAILED, f"rank: rank {losing}: gone")
        assert ranks.sent[1:] == [Disconnect("e1")]
        ranks.asked.clear()
        ranks.now += 1.0
        again = asyncio.create_task(ranks.pool.connect(params(engine.port)))
        await ranks.until_asked()
        ranks.answer(rank=0)
        ranks.answer(rank=1)
        await again
        assert ranks.state().state is PeerEngineState.CONNECTED


async def test_a_loss_told_before_a_cancelled_read_ends_is_not_forgotten_with_it() -> None:
    async with met() as (engine, ranks):
        ranks.pool.read_started("e1", 1)
        ranks.pool.read_given_up(1)
        ranks.answer(error="PeerLostError: gone")
        ranks.pool.read_ended("e1", 1, failed=False)
        assert ranks.state().error == "lost: rank 0: PeerLostError: gone"
        await ranks.pool.connect(params(engine.port))
        assert engine.num_asked == 2


async def test_what_a_rank_says_of_a_peer_becomes_one_short_line() -> None:
    async with served(Engine()) as engine, pooled(Ranks(errors={0: "a\nb " + "x" * 2**20})) as ranks:
        with pytest.raises(HandshakeError) as caught:
            await ranks.pool.connect(params(engine.port))
        assert str(caught.value).startswith("rank: rank 0: a b xxx")
        assert str(caught.value).endswith("x...")
        assert len(ranks.state().error) == len("rank: ") + MAX_LINE_CHARS


async def test_engines_that_hang_do_not_add_up_for_who_comes_after_them() -> None:
    """Many more than take turns here."""
    options = HandshakeOptions(timeout_s=30.0, concurrency=1)
    async with served(Engine()) as engine, hanging() as hung, pooled(options=options) as ranks:
        others = [asyncio.create_task(reason_of(ranks, params(hung.port, f"h{i}", tp_size=8))) for i in range(32)]
        await hung.until_asked(32)
        async with asyncio.timeout(PATIENCE_S):
            await ranks.pool.connect(params(engine.port))
        assert not any(task.done() for task in others)
        assert hung.num_asked == 32
        assert ranks.load() == WorkerLoad(peers_connecting=32, peers_connected=1)
        for i in range(32):
            ranks.pool.forget(f"h{i}")
        assert set(await asyncio.gather(*others)) == {HandshakeReason.FORGOTTEN}


async def test_no_more_engines_are_met_than_are_remembered() -> None:
    options = HandshakeOptions(max_engines=2)
    async with hanging() as hung, pooled(options=options) as ranks:
        waiting = [asyncio.create_task(reason_of(ranks, params(hung.port, name))) for name in ("a", "b")]
        await hung.until_asked(2)
        assert await reason_of(ranks, params(hung.port, "c")) is HandshakeReason.TOO_MANY
        assert set(ranks.pool.states()) == {"a", "b"}
        ranks.pool.forget("a")
        ranks.pool.forget("b")
        await asyncio.gather(*waiting)


async def test_our_ranks_are_told_of_no_more_engines_at_once_than_allowed() -> None:
    """The others have been asked meanwhile: only the turn is missing."""
    engines = [Engine(f"e{i}") for i in range(4)]
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(served(engine))
        ranks = await stack.enter_async_context(pooled(Ranks(silent=True), HandshakeOptions(concurrency=2)))
        tasks = [asyncio.create_task(ranks.pool.connect(params(e.port, e.ranks[0].engine_id))) for e in engines]
        await asyncio.gather(*(engine.was_asked.wait() for engine in engines))
        for num_told in (2, 3, 4):
            while len(ranks.sent) < num_told:
                await ranks.until_asked()
            assert len(ranks.sent) == num_told
            ranks.answer(ranks.sent[num_told - 2].engine_id)
        ranks.answer(ranks.sent[3].engine_id)
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("rank", ["x", "1", "-1", "01", "1.0", "9" * 5000, "%C2%B2", "%0A0", "0/"])
async def test_ranks_that_are_none(rank: str) -> None:
    app = FastAPI(redirect_slashes=False)
    app.include_router(handshake_router({0: b"x"}.get, SecretStr(TOKEN)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as client:
        good = {"Authorization": f"Bearer {TOKEN}"}
        assert (await client.get(f"/kv/handshake/{rank}", headers=good)).status_code == 404
        if "/" not in rank:
            assert (await client.get(f"/kv/handshake/{rank}")).status_code == 401


async def test_strangers_get_401_and_one_log_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    app = FastAPI()
    app.include_router(
        handshake_router(lambda rank: b"x" if rank == 0 else None, SecretStr(TOKEN), clock=lambda: now[0])
    )
    transport = httpx.ASGITransport(app)
    with caplog.at_level(logging.WARNING, handshake_server.__name__):
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
            for header in ({}, {"Authorization": "Bearer no"}, {"Authorization": TOKEN}, {"Authorization": "é"}):
                raw = [(name.encode(), value.encode()) for name, value in header.items()]
                response = await client.get("/kv/handshake/0", headers=raw)
                assert (response.status_code, response.content) == (401, b"")
            assert len(caplog.records) == 1
            now[0] = 61.0
            await client.get("/kv/handshake/0")
            assert len(caplog.records) == 2
            good = {"Authorization": f"Bearer {TOKEN}"}
            assert (await client.get("/kv/handshake/0", headers=good)).content == b"x"
            assert (await client.get("/kv/handshake/1", headers=good)).status_code == 404
