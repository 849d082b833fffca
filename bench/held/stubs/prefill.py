"""A process of stub prefill engines, which grant leases in Redis.

Its argument is ``PrefillSpec`` as JSON. Each line that it reads is answered with a line of ``PrefillStats``. Decode
engines tell it what they have read by lines of an engine's id and a lease's id, as notifications tell real ones.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

import msgspec
import uvloop

from baton_serve.core.leases.ids import new_id
from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.leases.store import LeaseState
from baton_serve.core.protocol.worker import Role, WorkerLoad, WorkerRecord
from baton_serve.workers.leases.keeper import LeaseKeeper
from bench.held.stubs.announcing import MODEL, NUM_BLOCKS, announce
from bench.held.stubs.engine_port import EnginePort, listen
from bench.held.stubs.lines import commands, say
from bench.worker_record import BLOCK_SIZE, worker_record

#: Tokens of the prompt that every answer speaks of: 1 KB of text.
NUM_TOKENS = 256


class PrefillSpec(msgspec.Struct):
    """What runs in the process."""

    redis_url: str
    num_engines: int
    max_num_seqs: int
    lease_duration_ms: int


class PrefillStats(msgspec.Struct):
    """``lapsed``: leases that expired before a decode engine had read. ``leases``: those that are held now.

    ``reads_port``: where decode engines tell what they have read. ``engine_ids``: of all engines of the process.
    """

    lapsed: int
    leases: int
    num_prefills: int
    reads_port: int
    engine_ids: list[str]


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
    b'"promise":4611686018427387904,"first_token":7,"first_logprobs":null,"prompt_token_ids":'
    + _json_ids(10_000, NUM_TOKENS)
    + b',"seed":null,"created":1764000000,"num_cached_tokens":0,"output_token_ids":[]}}'
)


class Prefiller:
    """A prefill engine, whose leases are kept as a worker keeps them."""

    def __init__(self, spec: PrefillSpec) -> None:
        self.engine_id = new_id()
        self.num_prefills = 0
        self._max_num_seqs = spec.max_num_seqs
        self.leases = LeaseKeeper(
            RedisLeaseStore(spec.redis_url),
            self.engine_id,
            on_end=lambda *_: None,
            on_failed=_fail,
            duration_ms=spec.lease_duration_ms,
        )
        self.leases.start()

    def record(self, url: str) -> WorkerRecord:
        """What does not change of it."""
        sizes = {"num_blocks": NUM_BLOCKS, "max_num_seqs": self._max_num_seqs}
        return worker_record(Role.PREFILL, MODEL, url, **sizes, engine_id=self.engine_id)

    def load(self, num_cached: int) -> WorkerLoad:
        """With so many cached blocks."""
        num = len(self.leases)
        free = NUM_BLOCKS - num * _BLOCKS - num_cached
        return WorkerLoad(free_blocks=free, cached_blocks=num_cached, leased_blocks=num * _BLOCKS, leases=num)

    def post(self, request: EnginePort, body: bytes) -> None:
        """Grant a lease, and answer."""
        self.num_prefills += 1
        lease_id = new_id()
        self.leases.grant(lease_id)
        request.answer(_PREFILLED % (self.engine_id.encode(), lease_id.encode()))


def _fail(error: Exception) -> None:
    """End the process: leases would not end any more."""
    sys.exit(f"a lease keeper failed: {error}")


def _stats(engines: Iterable[Prefiller], reads_port: int) -> PrefillStats:
    """What has happened so far."""
    return PrefillStats(
        sum(one.leases.stats.expired for one in engines),
        sum(len(one.leases) for one in engines),
        sum(one.num_prefills for one in engines),
        reads_port,
        [one.engine_id for one in engines],
    )


async def main(spec: PrefillSpec) -> None:
    """Serve until the lines end."""
    engines = {one.engine_id: one for one in (Prefiller(spec) for _ in range(spec.num_engines))}

    async def reads(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            engine_id, lease_id = line.decode().split()
            engines[engine_id].leases.tell(lease_id, LeaseState.DONE)  # one that has ended is counted as lapsed

    reads_server = await asyncio.start_server(reads, "127.0.0.1", 0)
    reads_port = reads_server.sockets[0].getsockname()[1]
    ports = [await listen(engine) for engine in engines.values()]
    announcing = await announce(
        spec.redis_url,
        [(engine.record(url), engine.load) for engine, (_, url) in zip(engines.values(), ports, strict=True)],
    )
    async for _ in commands():
        say(_stats(engines.values(), reads_port))
    del announcing, ports  # they have lived as long as the process


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=PrefillSpec)))
