"""The prefill engines that a decode worker meets: stand-ins that are well, and two that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from baton_serve.core.protocol.handshake import Handshake

HOST = "127.0.0.1"
#: Processes that the engines share.
NUM_HELPERS = 2


@dataclass(frozen=True)
class MetEngine:
    """The id of a prefill engine, and the port for its handshake."""

    engine_id: str
    port: int


@contextlib.asynccontextmanager
async def engines(like: Handshake, num_engines: int) -> AsyncIterator[list[MetEngine]]:
    """Prefill engines that a worker with this handshake can read from, in a few processes."""
    helpers: list[asyncio.subprocess.Process] = []
    try:
        for number in range(NUM_HELPERS):
            share = num_engines // NUM_HELPERS + (number < num_engines % NUM_HELPERS)
            wanted = {
                "num_engines": share,
                "compatibility_hash": like.compatibility_hash,
                "metadata": like.metadata.hex(),
            }
            argv = (sys.executable, "-m", "bench.handshakes.peers", json.dumps(wanted))
            pipe = asyncio.subprocess.PIPE
            helpers.append(await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe))
        lines = [await helper.stdout.readline() for helper in helpers if helper.stdout is not None]
        yield [MetEngine(engine_id, port) for line in lines for engine_id, port in json.loads(line)]
    finally:
        await asyncio.gather(*(helper.communicate(b"") for helper in helpers))


@contextlib.asynccontextmanager
async def bad_engines() -> AsyncIterator[list[MetEngine]]:
    """An engine that accepts and never answers, and one whose port is bound by a socket that does not listen."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, HOST, 0)
    with socket.socket() as deaf:
        deaf.bind((HOST, 0))
        async with server:
            yield [
                MetEngine("hangs", server.sockets[0].getsockname()[1]),
                MetEngine("refuses", deaf.getsockname()[1]),
            ]
