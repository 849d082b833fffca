"""Somebody else on a port where a worker or a router is thought to be."""

from __future__ import annotations

import asyncio
from typing import Self


class Stranger:
    """Keeps what it is sent, and answers each piece of it with these bytes."""

    def __init__(self, answer: bytes = b"", port: int = 0) -> None:
        self.answer = answer
        self.port = port
        self.heard = b""
        self.num_connections = 0
        #: A client has closed its connection.
        self.closed = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        self._server.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self._writers.append(writer)
        while data := await reader.read(1 << 16):
            self.heard += data
            writer.write(self.answer)
        writer.close()
        self.closed.set()
