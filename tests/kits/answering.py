"""A server whose answers are bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def serves(*pieces: bytes) -> AsyncIterator[str]:
    """The URL of a server that sends these pieces to whoever asks, and then waits for the next question."""

    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*(one for one in serving if one is not None))
