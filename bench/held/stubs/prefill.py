"""A process of stub prefill engines, which grant leases in Redis.

Its argument is ``PrefillSpec`` as JSON. Each line that it reads is answered with a line of ``PrefillStats``. Decode
engines tell it what they have read by lines of an engine's id and a lease's id, as notifications tell real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

import msgspec
import uvloop

from baton_serve.core.leases.holder_state import NotHeldError
from baton_serve.core.leases.ids import new_id
from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.protocol.worker import Role, WorkerLoad
from bench.held.stubs.announcing import BLOCK_SIZE, NUM_BLOCKS, announce, record
from bench.held.stubs.engine_port import listen
from bench.held.stubs.granter import Granter
from bench.held.stubs.lines import commands, say

if TYPE_CHECKING:
    from bench.held.stubs.engine_port import EnginePort

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


class Prefillers:
    """All engines of the process."""

    def __init__(self, spec: PrefillSpec, engine_ids: list[str]) -> None:
        self.granter = Granter(RedisLeaseStore(spec.redis_url), engine_ids, spec.lease_duration_ms)
        self.num_prefills = 0
        self.reads_port = 0

    def stats(self) -> PrefillStats:
        """What has happened so far."""
        leases = self.granter.num_leases()
        num_lapsed = self.granter.ended["expired"]
        return PrefillStats(num_lapsed, sum(leases.values()), self.num_prefills, self.reads_port, list(leases))

    def loads(self, num_cached: int) -> list[WorkerLoad]:
        """Each engine's load."""
        found = []
        for num in self.granter.num_leases().values():
            leased = num * _BLOCKS
            free = NUM_BLOCKS - leased - num_cached
            found.append(WorkerLoad(free_blocks=free, cached_blocks=num_cached, leased_blocks=leased, leases=num))
        return found

    async def listen_for_reads(self) -> asyncio.Server:
        """Serve the port on which decode engines tell what they have read."""
        server = await asyncio.start_server(self._reads, "127.0.0.1", 0)
        self.reads_port = server.sockets[0].getsockname()[1]
        return server

    async def _reads(self, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            engine_id, lease_id = line.decode().split()
            with contextlib.suppress(NotHeldError):  # it is counted as lapsed
                self.granter.done(engine_id, lease_id)


class Prefiller:
    """A prefill engine."""

    def __init__(self, engines: Prefillers, engine_id: str) -> None:
        self._engines = engines
        self._engine_id = engine_id

    def post(self, request: EnginePort, body: bytes) -> None:
        """Grant a lease, and answer."""
        self._engines.num_prefills += 1
        lease_id = new_id()
        answer = _PREFILLED % (self._engine_id.encode(), lease_id.encode())
        self._engines.granter.grant(self._engine_id, lease_id)
        request.answer(answer)

    def left(self, request: EnginePort) -> None:
        """Nothing is open."""


async def main(spec: PrefillSpec) -> None:
    """Serve until the lines end."""
    engine_ids = [new_id() for _ in range(spec.num_engines)]
    engines = Prefillers(spec, engine_ids)
    servers, records = [await engines.listen_for_reads()], []
    for engine_id in engine_ids:
        server, url = await listen(Prefiller(engines, engine_id))
        servers.append(server)
        records.append(record(Role.PREFILL, engine_id, url, spec.max_num_seqs))
    announcing = asyncio.create_task(announce(spec.redis_url, records, engines.loads))
    async for _ in commands():
        say(engines.stats())
    announcing.cancel()
    engines.granter.close()


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=PrefillSpec)))
