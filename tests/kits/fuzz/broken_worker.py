"""A router in front of a worker that answers the bytes of the test, alone or as the D that is asked first of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self

import httpx
import orjson

from baton_serve.core.leases.store import LeaseStore
from baton_serve.router.placement import Prefilled
from baton_serve.router.pool import Worker
from tests.kits.fuzz.profile import check_error, tried
from tests.kits.router.cluster import Cluster, chat, eventually, make_settings
from tests.kits.router.stub_workers import StubWorker

#: Sockets on both sides keep some MB of what the router never reads.
SOCKETS_BYTES = 16 << 20
#: Of a burst that has no end by itself.
PIECE_BYTES = 64 << 10
#: No vocabulary has more tokens.
MAX_ID = 2**31

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(content: str = " t", finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish}
    body = {"id": "x", "object": "chat.completion.chunk", "created": 5, "model": "m", "choices": [choice]}
    return b"data: " + orjson.dumps(body) + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


GOOD_EVENTS = event("") + event() + event() + event("", "length") + DONE
#: The same of a D of ours, which goes on after P's token and names its own.
NAMED_EVENTS = b":8\n" + event() + b":9\n" + event() + b":end\n" + event() + event("", "length") + DONE


def whole(events: bytes) -> bytes:
    """An answer of these events."""
    return CHUNKED + chunk(events) + b"0\r\n\r\n"


GOOD = whole(GOOD_EVENTS)


class RawWorker:
    """Speaks no HTTP of its own: ``answer`` is written as it is, then ``burst`` (which may be huge), then the end. It
    counts what the router took of that.
    """

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
            length = head.partition(b"content-length:")[2].split(b"\r\n")[0]
            body = await reader.readexactly(int(length or 0))
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


class RawFirst:
    """The policy that asks who is named raw, if it may."""

    def pick(self, workers: Sequence[Worker], prefilled: Prefilled) -> Worker:
        return next((worker for worker in workers if worker.worker_id == "raw"), workers[0])


class Broken:
    """A cluster whose raw worker answers what the test says. ``ours``: it is a D, a good P and a good D beside it."""

    def __init__(self, *, ours: bool = False) -> None:
        self.worker = RawWorker("decode" if ours else "both")
        self.worker.ours = ours
        self.area = (
            "a worker's named tokens, through the router" if ours else "a worker's HTTP answer, through the router"
        )
        self.good = whole(NAMED_EVENTS) if ours else GOOD
        self.others: list[StubWorker] = []

    async def __aenter__(self) -> Self:
        # One attempt each: each input is looked at by itself. A breaker would keep the next one from the raw worker.
        self.cluster = Cluster(
            make_settings(
                max_prefill_attempts=1,
                max_decode_attempts=1,
                breaker_failures=1_000_000,
                first_byte_timeout_s=5,
                token_timeout_s=5,
                max_answer_bytes=1 << 20,
            )
        )
        await self.cluster.start()
        await self.worker.start()
        self.cluster.workers.append(self.worker)  # type: ignore[arg-type]
        self.cluster.limits[self.worker.name] = 8
        self.cluster.hashes[self.worker.name] = "hash" if self.worker.ours else ""
        self.cluster.weights[self.worker.name] = "w" if self.worker.ours else ""
        if self.worker.ours:
            self.cluster.legs.pick_decode = RawFirst()
            self.worker.store = self.cluster.store
            self.others = [await self.cluster.add(role) for role in ("prefill", "decode")]
            for other in self.others:
                other.takes_any_ids = True
        self.cluster.announce()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cluster.close()

    async def answered(
        self, answer: bytes, burst: Callable[[], Iterator[bytes]] | None = None, *, stream: bool
    ) -> None:
        """This answer, and whatever it is made of: the client is told properly, and a good answer works afterwards."""
        tried[self.area] += 1
        self.worker.answer, self.worker.burst = answer, burst() if burst else ()
        check_answer(await self.cluster.post(chat(stream=stream)), stream=stream)
        assert self.worker.num_taken < SOCKETS_BYTES
        self._check_told()
        self.worker.answer, self.worker.burst = self.good, ()
        assert (await self.cluster.post(chat(stream=True))).content.endswith(DONE)
        await asyncio.sleep(0)
        await eventually(self.cluster.is_idle)

    def _check_told(self) -> None:
        """Whatever the raw worker has named, the others are told ids that could be some."""
        for other in self.others:
            told = [(body.get("kv_transfer_params") or {}).get("resume") or {} for body in other.bodies]
            other.bodies.clear()
            other.headers.clear()
            assert all(0 <= one < MAX_ID for resume in told for one in resume.get("token_ids", [])), told


def check_answer(answer: httpx.Response, *, stream: bool) -> None:
    check_error(answer, *range(500, 600))  # a worker's own status is passed on
    assert b"internal_error" not in answer.content
    if answer.status_code == 200 and stream:
        *_, last = answer.content.removesuffix(b"\n\n").split(b"\n\n")
        data = last.rpartition(b"data: ")[2]
        assert data == b"[DONE]" or b'"error"' in answer.content, answer.content[-300:]
