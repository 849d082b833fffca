"""A process of stub engines: prefill engines that grant leases in Redis, and decode engines that are full or have room.

Its argument is ``EnginesSpec`` as JSON. It reads one command a line: ``open`` and ``full`` say what decode engines
announce, ``end`` ends all streams, ``stats`` changes nothing. Each is answered with a line of ``EnginesStats``.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import sys
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import uvloop

from bench.held.stubs.engine_port import listen
from bench.held.stubs.granter import Granter
from bench.held.stubs.lines import commands, say
from core.leases.holder_state import NotHeldError
from core.leases.ids import new_id
from core.leases.redis_store import RedisLeaseStore
from core.protocol.worker import Role, WorkerLoad, WorkerRecord, WorkerStatus
from core.registry.announcement import WORKERS
from core.registry.redis_registry import RedisRegistry

if TYPE_CHECKING:
    from bench.held.stubs.engine_port import EnginePort

MODEL = "stub"
BLOCK_SIZE = 16
NUM_BLOCKS = 1 << 20
#: Tokens of the prompt that every answer speaks of: 1 KB of text.
NUM_TOKENS = 256
#: As often as workers announce themselves, and as long as they are believed.
ANNOUNCE_S = 0.25
TTL_MS = 3000
_LEASE = re.compile(rb'"remote_engine_id":"([^"]+)".*?"lease_id":"([^"]+)"', re.DOTALL)


class EnginesSpec(msgspec.Struct):
    """What runs in the process. ``max_num_seqs`` is each decode engine's; ``is_full``: they say at first that they are
    full. ``stays_open``: streams go on until they are ended; else they end with the second token.
    """

    redis_url: str
    num_prefill: int
    num_decode: int
    max_num_seqs: int
    is_full: bool
    stays_open: bool
    lease_duration_ms: int


class EnginesStats(msgspec.Struct):
    """``lapsed``: leases that expired before a decode engine had read. ``leases``: those that are held now."""

    lapsed: int
    leases: int
    streams: int
    num_prefills: int
    num_decodes: int


def _json_ids(first: int, num: int) -> bytes:
    return b"[%b]" % b",".join(b"%d" % (first + number) for number in range(num))


_BLOCKS = -(-NUM_TOKENS // BLOCK_SIZE)
_PREFILLED = (
    b'{"id":"chatcmpl-0","object":"chat.completion","created":1764000000,"model":"stub","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":" tok"},"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":256,'
    b'"completion_tokens":1,"total_tokens":257},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,'
    b'"remote_engine_id":"%b","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":1,"remote_block_ids":['
    + _json_ids(1000, _BLOCKS)
    + b'],"remote_num_tokens":256,"tp_size":1,"pp_size":1,"dcp_size":1,"transfer_mode":"pull","lease_id":"%b",'
    b'"block_versions":'
    + _json_ids(1 << 62, _BLOCKS)
    + b',"first_token":7,"first_logprobs":null,"prompt_token_ids":'
    + _json_ids(10_000, NUM_TOKENS)
    + b',"seed":null,"created":1764000000,"num_cached_tokens":0,"output_token_ids":[]}}'
)
_CHUNK = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1764000000,"model":"stub","choices":[{'
    b'"index":0,"delta":{"content":" tok"},"logprobs":null,"finish_reason":%b}]}\n\n'
)
_TOKEN = b":8\n" + _CHUNK % b"null"
_LAST = b":end\n" + _CHUNK % b'"length"' + b"data: [DONE]\n\n"


class Engines:
    """All engines of the process."""

    def __init__(self, spec: EnginesSpec, granter: Granter) -> None:
        self.spec = spec
        self.granter = granter
        self.is_full = spec.is_full
        self.num_prefills = self.num_decodes = 0
        self.decoders: list[Decoder] = []

    def stats(self) -> EnginesStats:
        """What has happened so far."""
        return EnginesStats(
            self.granter.ended["expired"],
            sum(self.granter.num_leases().values()),
            sum(len(one.streams) for one in self.decoders),
            self.num_prefills,
            self.num_decodes,
        )

    def command(self, line: str) -> EnginesStats:
        """Do what a line says."""
        if line in ("open", "full"):
            self.is_full = line == "full"
        elif line == "end":
            for one in self.decoders:
                one.end_all()
        return self.stats()


class Prefiller:
    """A prefill engine."""

    def __init__(self, engines: Engines, engine_id: str) -> None:
        self._engines = engines
        self._engine_id = engine_id
        self._loop = asyncio.get_running_loop()

    def post(self, request: EnginePort, body: bytes) -> None:
        """Grant a lease, and answer once Redis has it."""
        self._engines.num_prefills += 1
        lease_id = new_id()
        answer = _PREFILLED % (self._engine_id.encode(), lease_id.encode())
        send = partial(self._loop.call_soon_threadsafe, request.answer, answer)
        self._engines.granter.grant(self._engine_id, lease_id, send)

    def left(self, request: EnginePort) -> None:
        """Nothing is open."""


class Decoder:
    """A decode engine."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self.streams: set[EnginePort] = set()

    def post(self, request: EnginePort, body: bytes) -> None:
        """Read, which ends the lease, and stream."""
        engines = self._engines
        engines.num_decodes += 1
        found = _LEASE.search(body)
        if found is not None:
            with contextlib.suppress(NotHeldError):  # it is counted as lapsed
                engines.granter.done(found[1].decode(), found[2].decode())
        request.begin(_TOKEN)
        if engines.spec.stays_open:
            self.streams.add(request)
        else:
            request.end(_LAST)

    def left(self, request: EnginePort) -> None:
        """Forget its stream."""
        self.streams.discard(request)

    def end_all(self) -> None:
        """End all streams."""
        while self.streams:
            self.streams.pop().end(_LAST)


async def main(spec: EnginesSpec) -> None:
    """Serve until the lines end."""
    store = RedisLeaseStore(spec.redis_url)
    engine_ids = [new_id() for _ in range(spec.num_prefill)]
    engines = Engines(spec, Granter(store, engine_ids, spec.lease_duration_ms))
    servers, records = [], []
    for engine_id in engine_ids:
        server, url = await listen(Prefiller(engines, engine_id))
        servers.append(server)
        records.append(_record(Role.PREFILL, engine_id, url, spec.max_num_seqs))
    for _ in range(spec.num_decode):
        engines.decoders.append(decoder := Decoder(engines))
        server, url = await listen(decoder)
        servers.append(server)
        records.append(_record(Role.DECODE, new_id(), url, spec.max_num_seqs))
    announcing = asyncio.create_task(_announce(engines, records))
    async for line in commands():
        say(engines.stats() if line == "stats" else engines.command(line))
    announcing.cancel()
    engines.granter.close()


def _record(role: Role, engine_id: str, url: str, max_num_seqs: int) -> WorkerRecord:
    return WorkerRecord(
        worker_id=secrets.token_hex(6),
        engine_id=engine_id,
        role=role,
        model=MODEL,
        url=url,
        internal_url=url,
        compatibility_hash="stub",
        max_model_len=131_072,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_num_seqs=max_num_seqs,
        weights_fingerprint="stub",
    )


async def _announce(engines: Engines, records: list[WorkerRecord]) -> None:
    """Announce each engine as often as a worker does, spread over the interval. The load changes each time."""
    registry, round_number = RedisRegistry(engines.spec.redis_url, WORKERS), 0
    while True:
        leases = engines.granter.num_leases()
        running = [len(one.streams) for one in engines.decoders]
        for number, record in enumerate(records):
            num_leased = leases.get(record.engine_id, 0) * _BLOCKS
            num_running = 0
            if record.role is Role.DECODE:
                full = record.max_num_seqs if engines.is_full else 0
                num_running = max(full, running[number - len(leases)])
            load = WorkerLoad(
                running=num_running,
                free_blocks=NUM_BLOCKS - num_leased - round_number % 2,
                cached_blocks=round_number % 2,
                leased_blocks=num_leased,
                leases=leases.get(record.engine_id, 0),
            )
            await registry.announce(WorkerStatus(record=record, load=load), TTL_MS)
            await asyncio.sleep(ANNOUNCE_S / len(records))
        round_number += 1


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=EnginesSpec)))
