"""Stand-ins for prefill engines: NIXL agents over memory of zeros, each with a handshake port.

``python -m bench.handshakes.peers JSON`` prints one JSON line, a list of ``[engine id, port]``, and serves until its
standard input ends. The argument has ``num_engines`` and what must be the same as in the engine that reads: its
``compatibility_hash`` and, as msgpack in hex, the ``metadata`` of its rank 0. The version of every block is 0.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys

import msgspec
import numpy as np

from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.core.ucx import apply_ucx_environment
from baton_serve.workers.handshake.server import handshake_bytes
from bench.rank_memory import rank_memory

NUM_BLOCKS = 16


class StandInEngine:
    """One prefill engine of one rank, shaped like the rank that will read from it."""

    def __init__(self, reader: RankMetadata) -> None:
        from baton_serve.workers.transfer.rank_transfer import RankTransfer

        self.engine_id = secrets.token_hex(16)
        self._cache = np.zeros((NUM_BLOCKS, reader.block_bytes), dtype=np.uint8)
        memory = rank_memory(self.engine_id, self._cache.ctypes.data, *self._cache.shape, reader.shard)
        self.transfer = RankTransfer(memory, lambda event: None)

    def response(self, compatibility_hash: str) -> bytes:
        """The bytes of the HTTP answer to a handshake."""
        body = handshake_bytes(self.transfer.metadata(), compatibility_hash)
        return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def listen(response: bytes) -> asyncio.Server:
    """A server that answers every request with these bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


async def main(wanted: dict[str, object]) -> None:
    """Serve until the standard input ends."""
    reader = msgspec.msgpack.decode(bytes.fromhex(str(wanted["metadata"])), type=RankMetadata)
    engines = [StandInEngine(reader) for _ in range(int(str(wanted["num_engines"])))]
    servers = [await listen(engine.response(str(wanted["compatibility_hash"]))) for engine in engines]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    print(json.dumps([[engine.engine_id, port] for engine, port in zip(engines, ports, strict=True)]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for engine in engines:
        engine.transfer.close()


if __name__ == "__main__":
    apply_ucx_environment("127.0.0.1")
    asyncio.run(main(json.loads(sys.argv[1])))
