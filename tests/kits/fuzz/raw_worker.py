"""A worker that answers every request with the bytes it was given, and counts what the router took of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton_serve.core.leases.store import LeaseStore

#: Of a burst that has no end by itself.
PIECE_BYTES = 64 << 10


class RawWorker:
    """Speaks no HTTP of its own: ``answer`` is written as it is, then ``burst`` (which may be huge), then the end."""

    def __init__(self, role: str = "both", name: str = "raw") -> None:
        self.role = role
        self.name = name
        self.engine_id = f"engine{name}"
        self.model = "m"
        self.ours = False
        #: Where P's leases are, of which it tells that it has read them.
        self.store: LeaseStore | None = None
        self.url = ""
        self.answer = b""
        self.burst: Iterable[bytes] = ()
        #: Bytes of the last burst that went out before the router closed.
        self.num_taken = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def _read_blocks(self, body: bytes) -> None:
        """P's, as a D does: what it answers is another matter."""
        params = (json.loads(body).get("kv_transfer_params") or {}) if body else {}
        if self.store is not None and params.get("lease_id"):
            self.store.reap(params["remote_engine_id"], [params["lease_id"]], [params["lease_id"]])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
            self._read_blocks(body)
            if b"get /health" in head or b"get /v1/models" in head:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            else:
                writer.write(self.answer)
                self.num_taken = 0
                for piece in self.burst:
                    writer.write(piece)
                    await writer.drain()
                    self.num_taken += len(piece)
            await writer.drain()
        writer.close()
