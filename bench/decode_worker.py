"""A real decode worker with the demo model, and streams from it that note when each token came."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import httpx
import msgspec

from baton_serve.baton.cluster.cluster import DEMO_WORKER
from baton_serve.baton.cluster.process import ProcessSpec, alone
from baton_serve.core.protocol.handshake import Handshake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from baton_serve.core.protocol.status import Ready

HOST = "127.0.0.1"
STOP_TIMEOUT_S = 5.0
SPEC = ProcessSpec("decode", {**DEMO_WORKER, "num-blocks": 1024, "max-num-seqs": 64})


@asynccontextmanager
async def decode_worker(folder: Path) -> AsyncIterator[Ready]:
    """A decode worker as a process of its own, without Redis, and where it serves. Raises ChildDiedError."""
    async with alone("decode", SPEC, folder, STOP_TIMEOUT_S) as ready:
        yield ready


async def handshake_of(worker: Ready) -> Handshake:
    """What the worker tells a reader of its blocks: engines that it can read from have to be like it."""
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{worker.internal_url}/kv/handshake/0")
    return msgspec.msgpack.decode(answer.content, type=Handshake)


class TimedStream:
    """One streamed completion over a connection that is opened beforehand, so that posting is one write."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
        self._reader, self._writer, self._body = reader, writer, body
        self.posted_s = 0.0
        self.token_times_s: list[float] = []

    @classmethod
    async def open(cls, worker: Ready, body: dict[str, object]) -> TimedStream:
        """Connect. Nothing is sent yet."""
        return cls(*await asyncio.open_connection(HOST, httpx.URL(worker.url).port), json.dumps(body).encode())

    def post(self) -> None:
        """Send the request."""
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(self._body)}\r\n\r\n"
        self._writer.write(head.encode() + self._body)
        self.posted_s = time.monotonic()

    async def first_token_s(self) -> float:
        """Seconds from posting to the first token. Raises RuntimeError when there is none."""
        status = await self._reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"the worker answers {status!r} {await self._reader.read(2000)!r}")
        await self._next_token()
        return self.token_times_s[0] - self.posted_s

    async def run(self) -> None:
        """Note the times of tokens, until the end or until cancelled."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await self._next_token()

    async def _next_token(self) -> None:
        event = await self._reader.readuntil(b"\n\n")
        if b'"error"' in event:
            raise RuntimeError(f"the worker says {event!r}")
        self.token_times_s.append(time.monotonic())

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


def longest_gap_s(times_s: Sequence[float], begin_s: float, end_s: float) -> float:
    """The longest pause between two neighbouring times, of the pauses that overlap with the span."""
    return max(b - a for a, b in pairwise(times_s) if b >= begin_s and a <= end_s)
