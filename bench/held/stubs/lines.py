"""Commands and answers between the benchmark and its processes: a line each, over pipes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import msgspec


async def commands() -> AsyncIterator[str]:
    """The lines of standard input, until its end."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().strip()


def say(answer: msgspec.Struct) -> None:
    """Write an answer."""
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
