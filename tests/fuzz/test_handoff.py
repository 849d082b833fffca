"""What P, or a stranger in its place, tells D: the hand-off, the handshake and notifications. Pure, but for one server.

Whatever is said, D refuses with its typed error, or reads inside of what its peer advertises.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.core.protocol.handshake import WIRE_VERSION, Handshake, RankMetadata, Shard
from baton_serve.core.protocol.steps import Read, SamplingParams, Sent
from baton_serve.workers.engine.api import EngineError, EngineRequest
from baton_serve.workers.engine.config import EngineConfig
from baton_serve.workers.engine.scheduling.validation import check_request
from baton_serve.workers.handshake.fetch import HandshakeFetcher, target_of
from baton_serve.workers.handshake.resolver import Resolver
from baton_serve.workers.handshake.server import handshake_bytes
from baton_serve.workers.rank_protocol.transfer_errors import HandshakeError, TransferError
from baton_serve.workers.server.answers.transfer_params import parse
from baton_serve.workers.sharding.plan import check_pair, plan
from baton_serve.workers.transfer.memory.local_memory import blocks_of
from baton_serve.workers.transfer.memory.version_tables import versions_of
from baton_serve.workers.transfer.read_notices import MAX_OPEN, ReadNotice, ReadNotices, encode_read, parse_read
from baton_serve.workers.transfer.reads.read_checks import ReadRefusedError, check_read
from tests.kits.fuzz.broken_worker import RawWorker
from tests.kits.fuzz.profile import JSON, fuzz, mutated, tried
from tests.kits.transfer.shards import engine, shards
from tests.kits.worker.hand_off import GOOD

HASH = "0" * 32
BLOCK_SIZE = 16
PARAMS: dict[str, Any] = {
    **GOOD,
    "remote_block_ids": [[3, 4]],
    "remote_num_tokens": 20,
    "promise": 2**64 - 1,
    "prompt_token_ids": list(range(20)),
    "seed": 1,
    "created": 5,
    "num_cached_tokens": 0,
    "output_token_ids": [],
    "adapter": "",
}
WORSE: list[Any] = [
    -1,
    2**31,
    2**63,
    2**64,
    2**200,
    0.5,
    "",
    "x" * 100_000,
    "a\r\nb: c",
    "..",
    "::1%eth0",
    "127.0.0.1/../",
    None,
    True,
    [],
    [[]],
    [[-1]],
    [[2**31]],
    [[3, 3]],
    [[3], [4]],
    [[3, 4, 5]],
    [list(range(100_000))],
    [-1] * 20,
    {"token_ids": [-1]},
    {"token_ids": [2**31] * 100, "created": -1},
    {"content": [{}] * 1000},
]
CONFIG = EngineConfig(num_blocks=64, block_size=BLOCK_SIZE, vocab_size=300, max_model_len=200)


def accepted(raw: dict[str, Any]) -> None:
    """Refused as the request's fault, or something that the engine then reads within bounds."""
    tried["a hand-off (kv_transfer_params)"] += 1
    try:
        params = parse(raw)
    except BadRequestError as error:
        assert len(error.message) < 1000
        return
    if not isinstance(params, KVTransferParams):
        return
    request = EngineRequest(
        request_id="r",
        prompt_token_ids=params.prompt_token_ids or list(range(20)),
        sampling=SamplingParams(),
        max_tokens=50,
        stop_token_ids=frozenset({1}),
        remote=params,
        output_token_ids=params.output_token_ids,
    )
    try:
        check_request(request, CONFIG)
    except EngineError:
        return
    blocks = params.remote_block_ids[0]
    assert len(blocks) == len(set(blocks)) == -(-params.remote_num_tokens // BLOCK_SIZE)
    assert 0 < params.promise < 2**64
    assert all(0 <= block < 2**31 for block in blocks)
    try:
        target = target_of(params)
    except HandshakeError:
        return
    assert 0 < target.port < 65536 and not set(target.host) & set("/@?#% \r\n\0")


@fuzz(120)
@given(names=st.lists(st.tuples(st.sampled_from([*PARAMS, "resume", "tp_size", "first_logprobs"]), JSON), max_size=3))
def test_a_hand_off_with_any_values(names: list[tuple[str, Any]]) -> None:
    accepted({**PARAMS, **dict(names)})


@pytest.mark.parametrize("name", [*PARAMS, "resume", "tp_size", "pp_size", "dcp_size", "first_logprobs", "unknown"])
def test_a_hand_off_with_each_field_worse(name: str) -> None:
    for value in WORSE:
        accepted({**PARAMS, name: value})
    accepted({key: value for key, value in PARAMS.items() if key != name})


# --- the handshake


def rank_bytes(rank: RankMetadata | None = None) -> bytes:
    return handshake_bytes(rank or engine(shards(64, 2, 1, 1))[0], HASH)


async def fetch(liar: RawWorker, raw: bytes, num_ranks: int = 1) -> list[RankMetadata]:
    """The handshake of a server that answers these bytes, whatever it is asked."""
    liar.answer = raw
    fetcher = HandshakeFetcher("token", HASH, resolver=Resolver(no_names, 8), try_s=1.0)
    port = int(liar.url.rpartition(":")[2])
    told = {**PARAMS, "remote_port": port, "tp_size": num_ranks, "remote_engine_id": engine_id()}
    return await fetcher.fetch(target_of(msgspec.convert(told, KVTransferParams)))


def no_names(host: str) -> list[str]:
    return [host]


def engine_id() -> str:
    return engine(shards(64, 2, 1, 1))[0].engine_id


def http(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def liar() -> AsyncIterator[RawWorker]:
    made = RawWorker()
    await made.start()
    yield made
    await made.stop()


async def met(liar: RawWorker, raw: bytes) -> None:
    """HandshakeError of bounded length, or ranks that are then looked at as always."""
    tried["a handshake's answer"] += 1
    try:
        ranks = await fetch(liar, raw)
    except HandshakeError as error:
        assert len(str(error)) < 600 and "\n" not in str(error)
    else:
        read_inside(ranks)


@fuzz(120)
@given(body=mutated(rank_bytes()) | st.binary(max_size=64))
async def test_a_handshake_of_changed_bytes(liar: RawWorker, body: bytes) -> None:
    await met(liar, http(body))


@fuzz(60)
@given(raw=mutated(http(rank_bytes())))
async def test_a_handshake_over_changed_http(liar: RawWorker, raw: bytes) -> None:
    await met(liar, raw)


@pytest.mark.parametrize("depth", [100, 1_000, 200_000])
async def test_a_handshake_nested_deeply(liar: RawWorker, depth: int) -> None:
    nested = b"\x91" * depth + b"\x00"
    good = msgspec.msgpack.decode(rank_bytes())
    inner = msgspec.msgpack.encode({**good, "metadata": b"\x81\xa1x" + nested})
    for body in (nested, b"\x81\xa1x" + nested, inner):
        await met(liar, http(body))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00" * 10,
        http(b""),
        http(rank_bytes(), b"201 OK"),
        http(rank_bytes(), b"302 Found"),
        http(b"x" * (2 << 20)),
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (2 << 20),
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffff\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
        http(rank_bytes()[:-10]),
        http(rank_bytes() + b"\x00"),
        http(b"\xdf\xff\xff\xff\xff"),
        http(b"\xdd\xff\xff\xff\xff"),
        http(b"\xc6\xff\xff\xff\xff"),
    ],
    ids=range(15),
)
async def test_a_handshake_that_is_none(liar: RawWorker, raw: bytes) -> None:
    await met(liar, raw)


@pytest.mark.parametrize("version", [-1, 0, WIRE_VERSION - 1, WIRE_VERSION + 1, 2**64 - 1])
async def test_a_handshake_of_another_wire_version_says_so(liar: RawWorker, version: int) -> None:
    other = Handshake(wire_version=version, engine_id="", compatibility_hash="", metadata=b"\xff")
    with pytest.raises(HandshakeError, match=f"wire version {version} there"):
        await fetch(liar, http(msgspec.msgpack.encode(other)))


# --- the ranks that are told of, and what is read of them

NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 64, 65, 2**20, 2**31, 2**32, 2**48, 2**63, 2**64 - 1]) | st.integers(
    -(2**63), 2**64 - 1
)
RANKS = st.builds(
    RankMetadata,
    engine_id=st.just(engine_id()),
    rank=st.integers(-1, 4),
    num_ranks=st.integers(-1, 4) | NUMBERS,
    agent_metadata=st.binary(max_size=8),
    agent_name=st.text(max_size=4) | st.just("x" * 10_000),
    cache_address=NUMBERS,
    cache_memory_type=st.sampled_from(["DRAM", "VRAM", "FILE", ""]),
    cache_device_id=st.integers(-1, 1),
    num_blocks=st.integers(0, 100) | NUMBERS,
    block_bytes=st.sampled_from([0, 1, 8, 64, 4096, 65536]) | NUMBERS,
    version_address=NUMBERS,
    shard=st.builds(
        Shard,
        first_layer=st.integers(-1, 4) | NUMBERS,
        last_layer=st.integers(-1, 70) | NUMBERS,
        first_head=st.integers(-1, 4) | NUMBERS,
        last_head=st.integers(-1, 70) | NUMBERS,
    ),
)


def read_inside(remotes: list[RankMetadata], ours: RankMetadata | None = None) -> None:
    """Either refused, or all that is read of each rank lies in the cache and the version table it told of."""
    tried["an engine's description of its memory"] += 1
    local = ours or engine(shards(64, 2, 1, 1))[0]
    try:
        check_pair([local], remotes)
        sources = plan(local, remotes)
    except TransferError as error:
        assert "\n" not in str(error)
        return
    for source in sources:
        remote = source.remote
        assert source.num_readers > 0
        for run in source.runs:
            assert run.remote_offset >= 0 and run.remote_offset + run.num_bytes <= remote.block_bytes
            assert run.local_offset >= 0 and run.local_offset + run.num_bytes <= local.block_bytes
        spans = [(run.remote_offset, run.num_bytes) for run in source.runs]
        for pieces, first, size in (
            (blocks_of(remote, spans), remote.cache_address, remote.num_blocks * remote.block_bytes),
            (versions_of(remote), remote.version_address, 8 * remote.num_blocks),
        ):
            for row in pieces.rows:
                assert first <= row.address
                assert row.address + (row.count - 1) * row.stride + row.num_bytes <= first + size < 2**64


@fuzz(120)
@given(ranks=st.lists(RANKS, max_size=3))
def test_any_description_of_memory(ranks: list[RankMetadata]) -> None:
    read_inside(ranks)


FIELDS = [name for name in RankMetadata.__struct_fields__ if name not in {"agent_metadata", "shard", "engine_id"}]


@fuzz(150)
@given(
    name=st.sampled_from(FIELDS),
    number=NUMBERS,
    edges=st.none() | st.tuples(*[st.integers(-1, 70)] * 4),
    which=st.integers(0, 3),
)
def test_a_good_description_with_one_thing_changed(
    name: str, number: int, edges: tuple[int, int, int, int] | None, which: int
) -> None:
    ranks = engine(shards(64, 2, 2, 2))
    value: Any = str(number) if isinstance(getattr(ranks[which], name), str) else number
    ranks[which] = replace(ranks[which], **{name: value})
    if edges is not None:
        shard = Shard(first_layer=edges[0], last_layer=edges[1], first_head=edges[2], last_head=edges[3])
        ranks[which] = replace(ranks[which], shard=shard)
    read_inside(ranks)


# --- reads


IDS = st.lists(st.integers(-2, 70) | NUMBERS, max_size=6)


@fuzz(150)
@given(local=IDS, remote=IDS, promise=NUMBERS, busy=st.sets(st.integers(0, 63), max_size=3))
def test_a_read_of_any_blocks(local: list[int], remote: list[int], promise: int, busy: set[int]) -> None:
    tried["a read of blocks"] += 1
    read = Read(1, "e", "l", remote, local, promise, [])
    try:
        check_read(read, 64, 32, busy)
    except ReadRefusedError:
        return
    assert len(local) == len(remote) == len(set(local))
    assert all(0 <= block < 64 for block in local) and all(0 <= block < 32 for block in remote)
    assert busy.isdisjoint(local) and 0 <= promise < 2**64


# --- notifications


class Ears:
    """The part of an agent that hears."""

    name = "us"

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def notifications(self) -> list[bytes]:
        payloads, self.payloads = self.payloads, []
        return payloads


GOOD_NOTICE = encode_read(ReadNotice("a" * 32, 2, "b" * 32 + "-5", 1))
NOTICES = (
    mutated(GOOD_NOTICE)
    | st.binary(max_size=40)
    | st.from_regex(rb"[a-f0-9]{1,4}:[0-9]{1,3}:[a-f]{1,2}-[0-9]{1,22}:[0-9]{1,3}", fullmatch=True)
)


@fuzz(120)
@given(payloads=st.lists(NOTICES, max_size=20))
def test_notifications_of_a_stranger(payloads: list[bytes]) -> None:
    ears = Ears()
    notices = ReadNotices(ears)  # type: ignore[arg-type]
    for payload in payloads:
        tried["a notification"] += 1
        notice = parse_read(payload)
        if notice is not None:
            assert encode_read(notice) == payload
            assert notice.num_readers > 0 and notice.rank >= 0
    ears.payloads = payloads * 2
    notices.listen()
    for sent in notices.take_sent():
        assert isinstance(sent, Sent) and sent.lease_id


def strangers() -> Iterator[bytes]:
    yield b""
    yield b"\xff" * 100
    yield b"a" * 10_000_000
    yield b":" * 1000
    yield GOOD_NOTICE + b"\n"
    yield b"a:1:b-1:0\x00"
    yield "а:1:b-1:0".encode()
    yield b"a:99:b-1:98"
    yield b"a:1:b-" + b"9" * 21 + b":0"


def test_notifications_fill_neither_memory_nor_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ears = Ears()
    notices = ReadNotices(ears)  # type: ignore[arg-type]
    half_told: Iterable[bytes] = (b"l%d:2:e-1:0" % number for number in range(3 * MAX_OPEN))
    ears.payloads = [*strangers(), *half_told, *[b"\xff"] * 1000]
    tried["a notification"] += len(ears.payloads)
    notices.listen()
    assert notices.take_sent() == []
    assert len(notices._gather) == MAX_OPEN
    assert len(caplog.records) < 15
