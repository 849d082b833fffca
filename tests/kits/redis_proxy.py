"""A Redis behind a door of ours: what goes in can be held up."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Self

from baton_serve.baton.processes.embedded_redis import EmbeddedRedis
from baton_serve.core.process.task_end import end_task

CHUNK_BYTES = 2**16


class ProxiedRedis(EmbeddedRedis):
    """Everybody is told the door's URL; ``direct_path`` is where the server itself listens."""

    def __init__(self, door: Path, log_path: Path) -> None:
        super().__init__(log_path=log_path)
        self._door = door

    @property
    def url(self) -> str:
        return f"unix://{self._door}?db=0"

    @property
    def direct_path(self) -> str:
        return super().url.removeprefix("unix://").partition("?")[0]


class RedisProxy:
    """Leads each new connection to where ``target`` says, a path or a port; old ones stay where they are.

    An async context manager. It listens at a path, or at a port of its own, with or without TLS. Connections without a
    server are closed.
    """

    def __init__(
        self, target: Callable[[], str | int], door: Path | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._target = target
        self._door = door
        self._tls = tls
        self._pumps: set[asyncio.Task[None]] = set()
        #: What clients send waits so long before it goes on; they send one command, or one pipeline, at a time.
        self.delay_s = 0.0
        #: Commands, or pipelines, that were held up.
        self.num_delayed = 0

    async def __aenter__(self) -> Self:
        if self._door is not None:
            self._server = await asyncio.start_unix_server(self._serve, self._door)
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for pump in list(self._pumps):
            await end_task(pump)

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await _connection_to(self._target())
        except OSError:
            writer.close()
            return
        both = [self._pump(reader, to_server, held_up=True), self._pump(from_server, writer, held_up=False)]
        for pump in both:
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held_up: bool) -> None:
        """When one side closes, so does the other."""
        with contextlib.suppress(OSError), contextlib.closing(writer):
            while data := await reader.read(CHUNK_BYTES):
                if held_up and self.delay_s:
                    self.num_delayed += 1
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()


async def _connection_to(target: str | int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(target, str):
        return await asyncio.open_unix_connection(target)
    return await asyncio.open_connection("127.0.0.1", target)
