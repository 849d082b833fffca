"""A process of stub decode engines, which are full or have room.

Its argument is ``DecodeSpec`` as JSON. It reads one command a line: ``open`` and ``full`` say what the engines
announce, ``end`` ends all streams, ``stats`` changes nothing. Each is answered with a line of ``DecodeStats``.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import TYPE_CHECKING

import msgspec
import uvloop

from baton_serve.core.protocol.worker import Role, WorkerLoad
from bench.held.stubs.announcing import MODEL, NUM_BLOCKS, announce
from bench.held.stubs.engine_port import listen
from bench.held.stubs.lines import commands, say
from bench.worker_record import worker_record

if TYPE_CHECKING:
    from bench.held.stubs.engine_port import EnginePort

_LEASE = re.compile(rb'"remote_engine_id":"([^"]+)".*?"lease_id":"([^"]+)"', re.DOTALL)


class DecodeSpec(msgspec.Struct):
    """What runs in the process. ``max_num_seqs`` is each engine's; ``is_full``: they say at first that they are full.
    ``stays_open``: streams go on until they are ended; else they end with the second token. ``reads_port`` is the
    prefill engines'.
    """

    redis_url: str
    num_engines: int
    max_num_seqs: int
    is_full: bool
    stays_open: bool
    reads_port: int = 0


class DecodeStats(msgspec.Struct):
    """What has happened so far, in all engines of the process."""

    num_decodes: int = 0

    def add(self, other: DecodeStats) -> None:
        """Count those of another process too."""
        self.num_decodes += other.num_decodes


_CHUNK = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1764000000,"model":"stub","choices":[{'
    b'"index":0,"delta":{"content":" tok"},"logprobs":null,"finish_reason":%b}]}\n\n'
)
_TOKEN = b":8\n" + _CHUNK % b"null"
_LAST = b":end\n" + _CHUNK % b'"length"' + b"data: [DONE]\n\n"


class Decoders:
    """All engines of the process."""

    def __init__(self, spec: DecodeSpec, reads: asyncio.StreamWriter) -> None:
        self.spec = spec
        self.reads = reads
        self.is_full = spec.is_full
        self.num_decodes = 0
        self.engines = [Decoder(self) for _ in range(spec.num_engines)]

    def command(self, line: str) -> DecodeStats:
        """Do what a line says."""
        if line in ("open", "full"):
            self.is_full = line == "full"
        elif line == "end":
            for one in self.engines:
                one.end_all()
        return DecodeStats(self.num_decodes)


class Decoder:
    """A decode engine."""

    def __init__(self, decoders: Decoders) -> None:
        self._decoders = decoders
        self.streams: set[EnginePort] = set()

    def load(self, num_cached: int) -> WorkerLoad:
        """With so many cached blocks."""
        spec = self._decoders.spec
        running = max(spec.max_num_seqs if self._decoders.is_full else 0, len(self.streams))
        return WorkerLoad(running=running, free_blocks=NUM_BLOCKS - num_cached, cached_blocks=num_cached)

    def post(self, request: EnginePort, body: bytes) -> None:
        """Read, which ends the lease, and stream."""
        decoders = self._decoders
        decoders.num_decodes += 1
        found = _LEASE.search(body)
        if found is not None:
            decoders.reads.write(b"%b %b\n" % found.groups())
        request.begin(_TOKEN)
        if decoders.spec.stays_open:
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


async def main(spec: DecodeSpec) -> None:
    """Serve until the lines end."""
    _, reads = await asyncio.open_connection("127.0.0.1", spec.reads_port)
    decoders = Decoders(spec, reads)
    ports = [await listen(engine) for engine in decoders.engines]
    announcing = await announce(
        spec.redis_url,
        [
            (worker_record(Role.DECODE, MODEL, url, num_blocks=NUM_BLOCKS, max_num_seqs=spec.max_num_seqs), engine.load)
            for engine, (_, url) in zip(decoders.engines, ports, strict=True)
        ],
    )
    async for line in commands():
        say(decoders.command(line))
    del announcing, ports  # they have lived as long as the process


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=DecodeSpec)))
