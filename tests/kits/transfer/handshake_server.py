"""A P that hands out its handshake, or does not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from baton_serve.core.net.tls import InternalTls
from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.workers.handshake.fetch import Target
from baton_serve.workers.handshake.server import handshake_bytes
from tests.kits.patience import PATIENCE_S
from tests.kits.transfer.shards import engine, shards

HASH = "0" * 32
_PATH = re.compile(rb"GET /kv/handshake/(\d+) ")


def ranks_of(num_ranks: int) -> list[RankMetadata]:
    return engine(shards(64, 2, num_ranks, 1))


class Server:
    """The ranks of one engine; those of ``silent`` take a request and never answer it."""

    def __init__(self, num_ranks: int, silent: Callable[[int], bool] = lambda rank: False) -> None:
        self.ranks = ranks_of(num_ranks)
        self.silent = silent
        self.port = 0
        self.hosts: list[str] = []
        #: Connections that wait for an answer.
        self.num_waiting = 0
        self._changed = asyncio.Condition()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        rank = int(_PATH.match(head)[1])  # type: ignore[index]
        self.hosts += re.findall(r"Host: (.*)\r\n", head.decode())
        if self.silent(rank):
            await self._count(1)
            await reader.read()
            await self._count(-1)
        else:
            body = handshake_bytes(self.ranks[rank], HASH)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    @asynccontextmanager
    async def served(self, tls: InternalTls | None = None) -> AsyncIterator[Server]:
        """Serve on a port of this machine."""
        context = None if tls is None else tls.server(internal=True)
        async with await asyncio.start_server(self.handle, "127.0.0.1", 0, ssl=context) as listener:
            self.port = listener.sockets[0].getsockname()[1]
            yield self

    async def _count(self, difference: int) -> None:
        async with self._changed:
            self.num_waiting += difference
            self._changed.notify_all()

    async def until_waiting(self, number: int) -> None:
        async with self._changed, asyncio.timeout(PATIENCE_S):
            await self._changed.wait_for(lambda: self.num_waiting == number)


def target(port: int, host: str = "127.0.0.1", num_ranks: int = 1) -> Target:
    return Target("e", host, port, num_ranks)
