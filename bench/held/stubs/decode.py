"""A process of stub decode engines, which are full until they have room.

Its argument is ``DecodeSpec`` as JSON. It reads one command a line: from ``open`` on the engines announce that they
have room, ``stats`` changes nothing. Each is answered with a line of ``DecodeStats``.
"""

from __future__ import annotations

import asyncio
import re
import sys

import msgspec
import uvloop

from baton_serve.core.protocol.worker import Role, WorkerLoad
from bench.held.stubs.announcing import MODEL, NUM_BLOCKS, announce
from bench.held.stubs.engine_port import EnginePort, listen
from bench.held.stubs.lines import commands, say
from bench.worker_record import worker_record

_LEASE = re.compile(rb'"remote_engine_id":"([^"]+)".*?"lease_id":"([^"]+)"', re.DOTALL)


class DecodeSpec(msgspec.Struct):
    """What runs in the process. ``max_num_seqs`` is each engine's; ``reads_port`` is the prefill engines'."""

    redis_url: str
    num_engines: int
    max_num_seqs: int
    reads_port: int = 0


class DecodeStats(msgspec.Struct):
    """What has happened so far, in all engines of the process."""

    num_decodes: int = 0


_CHUNK = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1764000000,"model":"stub","choices":[{'
    b'"index":0,"delta":{"content":" tok"},"logprobs":null,"finish_reason":%b}]}\n\n'
)
_TOKEN = b":8\n" + _CHUNK % b"null"
_LAST = b":end\n" + _CHUNK % b'"length"' + b"data: [DONE]\n\n"


class Decoders:
    """All engines of the process, which are alike."""

    def __init__(self, max_num_seqs: int, reads: asyncio.StreamWriter) -> None:
        self.num_running = max_num_seqs
        self.num_decodes = 0
        self._reads = reads

    def load(self, num_cached: int) -> WorkerLoad:
        """Of each, with so many cached blocks."""
        return WorkerLoad(running=self.num_running, free_blocks=NUM_BLOCKS - num_cached, cached_blocks=num_cached)

    def post(self, request: EnginePort, body: bytes) -> None:
        """Read, which ends the lease, and stream."""
        self.num_decodes += 1
        found = _LEASE.search(body)
        if found is not None:
            self._reads.write(b"%b %b\n" % found.groups())
        request.stream(_TOKEN, _LAST)


async def main(spec: DecodeSpec) -> None:
    """Serve until the lines end."""
    _, reads = await asyncio.open_connection("127.0.0.1", spec.reads_port)
    decoders = Decoders(spec.max_num_seqs, reads)
    ports = [await listen(decoders) for _ in range(spec.num_engines)]
    records = [
        worker_record(Role.DECODE, MODEL, url, num_blocks=NUM_BLOCKS, max_num_seqs=spec.max_num_seqs)
        for _, url in ports
    ]
    announcing = await announce(spec.redis_url, [(record, decoders.load) for record in records])
    async for line in commands():
        if line == "open":
            decoders.num_running = 0
        say(DecodeStats(decoders.num_decodes))
    del announcing, ports  # they have lived as long as the process


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=DecodeSpec)))
