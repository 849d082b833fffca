"""A real decode worker with the demo model, and streams of tokens from it whose times are noted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import httpx
import msgspec

from baton.demo import MODEL_DIR
from baton.processes.child import Child, ChildSpec
from core.protocol.handshake import Handshake

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

HOST = "127.0.0.1"
MODEL = "baton-demo"
FLAGS = {
    "model": str(MODEL_DIR),
    "served-model-name": MODEL,
    "role": "decode",
    "redis-url": "",
    "port": "0",
    "internal-port": "0",
    "torch-threads": "1",
    "num-blocks": "1024",
    "max-num-seqs": "64",
}


class Decoder:
    """A decode worker as a process of its own."""

    def __init__(self, folder: Path) -> None:
        flags = [f"--{name}={value}" for name, value in FLAGS.items()]
        argv = (sys.executable, "-m", "baton", "worker", *flags)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
        self._child = Child(ChildSpec("decode", argv, environ), folder / "decode.log", lambda *_: None)

    async def __aenter__(self) -> Decoder:
        await self._child.start()
        try:
            ready = await self._child.ready()
        except BaseException:
            await self._child.stop(0.0)
            raise
        self.port = int(httpx.URL(ready.url).port or 0)
        self.internal_url = ready.internal_url
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._child.stop(5.0)

    async def handshake(self) -> Handshake:
        """How it would be read from: what the engines have to be like."""
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{self.internal_url}/kv/handshake/0")
        return msgspec.msgpack.decode(answer.content, type=Handshake)


class Stream:
    """One streamed completion over a connection of its own, opened beforehand: posting costs one write."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
        self._reader, self._writer, self._body = reader, writer, body
        self.posted_s = 0.0
        self.token_times_s: list[float] = []

    @classmethod
    async def open(cls, port: int, body: dict[str, object]) -> Stream:
        """Connect; nothing is asked yet."""
        return cls(*await asyncio.open_connection(HOST, port), json.dumps(body).encode())

    def post(self) -> None:
        """Ask."""
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
        """Note when tokens come, until cancelled or at the end."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await self._next_token()

    async def _next_token(self) -> None:
        event = await self._reader.readuntil(b"\n\n")
        if b'"error"' in event:
            raise RuntimeError(f"the worker says {event!r}")
        self.token_times_s.append(time.monotonic())

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


def longest_gap_s(times_s: Sequence[float], begin_s: float, end_s: float) -> float:
    """Of the pauses between two neighbouring times, among those that touch the span."""
    return max(b - a for a, b in pairwise(times_s) if b >= begin_s and a <= end_s)
