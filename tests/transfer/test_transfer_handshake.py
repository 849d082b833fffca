"""The handshake pool against real HTTP servers: ours, and others that hang, refuse, lie and talk nonsense."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest
import uvicorn
from fastapi import FastAPI

from protocol.handoff import KVTransferParams
from protocol.handshake import Handshake, RankMetadata, Shard
from protocol.steps import Connect, Connected, Disconnect
from workers.transfer import handshake_server
from workers.transfer.errors import HandshakeError, HandshakeReason
from workers.transfer.handshake_fetch import MAX_ANSWER_BYTES
from workers.transfer.handshake_pool import HandshakeOptions, HandshakePool, PeerState
from workers.transfer.handshake_server import OncePerMinute, handshake_bytes, handshake_router

TOKEN = "s3cret"
HASH = "0" * 32
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def metadata(engine_id: str = "e1", rank: int = 0, num_ranks: int = 1) -> RankMetadata:
    return RankMetadata(
        engine_id=engine_id,
        rank=rank,
        num_ranks=num_ranks,
        agent_metadata=b"\x00\xff",
        agent_name=f"{engine_id}-{rank}",
        cache_address=4096,
        cache_memory_type="DRAM",
        cache_device_id=0,
        num_blocks=4,
        block_bytes=64,
        version_address=8192,
        shard=Shard(first_layer=0, last_layer=2, first_head=0, last_head=2),
    )


def params(port: int, engine_id: str = "e1", host: str = "127.0.0.1", tp_size: int = 1) -> KVTransferParams:
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
    )


class Engine:
    """A worker's internal port with ``num_ranks`` ranks; may be restarted as another engine on the same port."""

    def __init__(
        self, engine_id: str = "e1", num_ranks: int = 1, compatibility_hash: str = HASH, token: str = TOKEN
    ) -> None:
        self.token = token
        self.num_asked = 0
        self.hash = compatibility_hash
        self.ranks = [metadata(engine_id, rank, num_ranks) for rank in range(num_ranks)]
        self.port = 0

    def answer(self, rank: int) -> bytes | None:
        self.num_asked += 1
        return handshake_bytes(self.ranks[rank], self.hash) if rank < len(self.ranks) else None

    def app(self) -> FastAPI:
        app = FastAPI()
        app.include_router(handshake_router(self.answer, self.token))
        return app


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[Engine]:
    server = uvicorn.Server(uvicorn.Config(engine.app(), lifespan="off", log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        engine.port = listener.getsockname()[1]
        task = asyncio.create_task(server.serve([listener]))
        try:
            yield engine
        finally:
            server.should_exit = True
            await task


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


class Ranks:
    """Our own ranks: they answer every Connect, unless told not to."""

    def __init__(self, num_ranks: int = 1, error: str = "", *, silent: bool = False) -> None:
        self.sent: list[Connect | Disconnect] = []
        self.asked = asyncio.Event()
        self.now = 1000.0
        self._error = error
        self._silent = silent
        self._num_ranks = num_ranks
        self.pool: HandshakePool

    def send(self, message: Connect | Disconnect) -> None:
        self.sent.append(message)
        self.asked.set()
        if isinstance(message, Connect) and not self._silent:
            loop = asyncio.get_running_loop()
            for rank in range(self._num_ranks):
                loop.call_soon(self.pool.on_connected, rank, Connected(message.engine_id, self._error))


@asynccontextmanager
async def pooled(
    ranks: Ranks | None = None, options: HandshakeOptions | None = None, token: str | None = TOKEN, num_ranks: int = 1
) -> AsyncIterator[Ranks]:
    ranks = ranks or Ranks(num_ranks)
    ranks.pool = HandshakePool(
        ranks.send,
        num_ranks=num_ranks,
        token=token,
        compatibility_hash=HASH,
        options=options,
        clock=lambda: ranks.now,
    )
    yield ranks
    await ranks.pool.close()


async def reason_of(ranks: Ranks, wanted: KVTransferParams) -> HandshakeReason:
    with pytest.raises(HandshakeError) as caught:
        await ranks.pool.connect(wanted)
    return caught.value.reason


async def test_many_requests_share_one_handshake() -> None:
    async with served(Engine()) as engine, pooled() as ranks:
        await asyncio.gather(*(ranks.pool.connect(params(engine.port)) for _ in range(20)))
        await ranks.pool.connect(params(engine.port))
        assert engine.num_asked == 1
        assert ranks.sent == [Connect("e1", [metadata()])]
        assert ranks.pool.states() == {"e1": PeerState.CONNECTED}


async def test_every_rank_there_is_asked_and_every_rank_here_answers() -> None:
    async with served(Engine(num_ranks=2)) as engine, pooled(Ranks(num_ranks=3), num_ranks=3) as ranks:
        await ranks.pool.connect(params(engine.port, tp_size=2))
        assert ranks.sent == [Connect("e1", [metadata("e1", 0, 2), metadata("e1", 1, 2)])]


async def test_a_rank_of_ours_that_cannot_connect_fails_the_handshake() -> None:
    async with served(Engine()) as engine, pooled(Ranks(error="shards differ")) as ranks:
        with pytest.raises(HandshakeError, match="rank 0: shards differ") as caught:
            await ranks.pool.connect(params(engine.port))
        assert caught.value.reason is HandshakeReason.RANK


async def test_nobody_there() -> None:
    async with raw_server(answering(b"")) as port:
        pass
    async with pooled() as ranks:
        assert await reason_of(ranks, params(port)) is HandshakeReason.REFUSED


async def test_a_server_that_hangs_holds_up_only_its_own_requests() -> None:
    release = asyncio.Event()

    async def hang(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await release.wait()

    options = HandshakeOptions(timeout_s=0.3)
    async with served(Engine()) as engine, raw_server(hang) as port, pooled(options=options) as ranks:
        hanging = asyncio.create_task(reason_of(ranks, params(port, "e2")))
        await ranks.pool.connect(params(engine.port))
        assert not hanging.done()
        assert await hanging is HandshakeReason.TIMEOUT
        assert ranks.pool.states() == {"e1": PeerState.CONNECTED, "e2": PeerState.FAILED}
        release.set()


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


async def test_an_unserved_rank_is_refused() -> None:
    async with served(Engine(num_ranks=2)) as engine, pooled() as ranks:
        del engine.ranks[1]
        assert await reason_of(ranks, params(engine.port, tp_size=2)) is HandshakeReason.REFUSED


async def test_another_hash_is_incompatible() -> None:
    async with served(Engine(compatibility_hash="1" * 32)) as engine, pooled() as ranks:
        assert await reason_of(ranks, params(engine.port)) is HandshakeReason.INCOMPATIBLE
        assert ranks.sent == []


async def test_a_restarted_engine_is_another_engine() -> None:
    async with served(Engine("old")) as engine, pooled() as ranks:
        await ranks.pool.connect(params(engine.port, "old"))
        engine.ranks = [metadata("new")]
        assert await reason_of(ranks, params(engine.port, "older")) is HandshakeReason.WRONG_ENGINE
        await ranks.pool.connect(params(engine.port, "new"))
        assert ranks.pool.states()["new"] is PeerState.CONNECTED


def lying(**changes: object) -> bytes:
    true = Handshake(
        wire_version=1, engine_id="e1", compatibility_hash=HASH, metadata=msgspec.msgpack.encode(metadata())
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
        (lying(metadata=msgspec.msgpack.encode(metadata(rank=1))), HandshakeReason.GARBAGE),
        (lying(metadata=msgspec.msgpack.encode(metadata("e2"))), HandshakeReason.GARBAGE),
        (lying(wire_version=2, metadata=b"\x01"), HandshakeReason.INCOMPATIBLE),
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


@pytest.mark.parametrize("port", [0, -1, 65536])
async def test_ports_that_are_none(port: int) -> None:
    async with pooled() as ranks:
        assert await reason_of(ranks, params(port)) is HandshakeReason.BAD_ADDRESS


@pytest.mark.parametrize("tp_size", [0, 65])
async def test_sizes_that_are_none(tp_size: int) -> None:
    async with pooled() as ranks:
        assert await reason_of(ranks, params(80, tp_size=tp_size)) is HandshakeReason.INCOMPATIBLE


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
        ranks.pool.on_connected(0, Connected("e1", ""))
        await stayer
        assert ranks.pool.states() == {"e1": PeerState.CONNECTED}


async def test_forgetting_disconnects_and_fails_who_waits() -> None:
    async with served(Engine()) as engine, pooled(Ranks(silent=True)) as ranks:
        waiter = asyncio.create_task(reason_of(ranks, params(engine.port)))
        await ranks.asked.wait()
        ranks.pool.forget("e1")
        assert await waiter is HandshakeReason.FORGOTTEN
        assert ranks.sent[1:] == [Disconnect("e1")]
        assert ranks.pool.states() == {}
        ranks.pool.on_connected(0, Connected("e1", ""))


async def test_the_engine_unused_for_longest_is_forgotten_but_none_that_is_read_from() -> None:
    options = HandshakeOptions(max_engines=3)
    async with served(Engine()) as engine, pooled(options=options) as ranks:
        for name in ("a", "b", "c"):
            engine.ranks = [metadata(name)]
            await ranks.pool.connect(params(engine.port, name))
        ranks.pool.read_started("a")
        await ranks.pool.connect(params(engine.port, "b"))
        engine.ranks = [metadata("d")]
        await ranks.pool.connect(params(engine.port, "d"))
        assert ranks.sent[-2] == Disconnect("c")
        assert set(ranks.pool.states()) == {"a", "b", "d"}
        ranks.pool.read_ended("a", failed=False)
        engine.ranks = [metadata("e")]
        await ranks.pool.connect(params(engine.port, "e"))
        assert set(ranks.pool.states()) == {"b", "d", "e"}


async def test_after_a_failed_read_the_engine_is_met_anew() -> None:
    async with served(Engine()) as engine, pooled() as ranks:
        for failed, num_asked in ((False, 1), (True, 2)):
            await ranks.pool.connect(params(engine.port))
            ranks.pool.read_started("e1")
            ranks.pool.read_ended("e1", failed=failed)
            await ranks.pool.connect(params(engine.port))
            assert engine.num_asked == num_asked


async def test_an_engine_that_a_rank_has_lost_is_met_anew() -> None:
    async with served(Engine()) as engine, pooled() as ranks:
        await ranks.pool.connect(params(engine.port))
        ranks.pool.on_connected(0, Connected("e1", "gone"))
        ranks.pool.on_connected(0, Connected("never heard of", "gone"))
        await ranks.pool.connect(params(engine.port))
        assert engine.num_asked == 2
        assert ranks.pool.states() == {"e1": PeerState.CONNECTED}


async def test_waiting_for_a_turn_is_part_of_the_time_an_attempt_may_take() -> None:
    """Engines that hang do not add up: only the first is asked, and all fail when its time is over."""
    release, asked = asyncio.Event(), 0

    async def hang(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await release.wait()

    options = HandshakeOptions(timeout_s=0.2, concurrency=1)
    async with raw_server(hang) as port, pooled(options=options) as ranks:
        reasons = await asyncio.gather(*(reason_of(ranks, params(port, f"e{number}")) for number in range(30)))
        assert set(reasons) == {HandshakeReason.TIMEOUT}
        assert asked < 5
        release.set()


async def test_no_more_handshakes_at_once_than_allowed() -> None:
    waiting: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def hang(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        release = asyncio.Event()
        waiting.put_nowait(release)
        await release.wait()

    async with raw_server(hang) as port, pooled(options=HandshakeOptions(concurrency=2)) as ranks:
        tasks = [asyncio.create_task(reason_of(ranks, params(port, f"e{i}"))) for i in range(4)]
        first, second = await waiting.get(), await waiting.get()
        for following in (first, second):
            assert waiting.empty()
            following.set()
            await waiting.get()
            assert sum(task.done() for task in tasks) == (1 if following is first else 2)
        for i in range(4):
            ranks.pool.forget(f"e{i}")
        await asyncio.gather(*tasks)


async def test_strangers_get_401_and_one_log_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    app = FastAPI()
    app.include_router(handshake_router(lambda rank: b"x" if rank == 0 else None, TOKEN, clock=lambda: now[0]))
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
            assert (await client.get("/kv/handshake/x", headers=good)).status_code == 422


def test_once_per_minute_forgets_the_oldest() -> None:
    now = [0.0]
    once = OncePerMinute(lambda: now[0])
    assert all(once.first(str(i)) for i in range(1001))
    assert not once.first("1000")
    assert once.first("0")
    now[0] = 60.0
    assert once.first("1000")
