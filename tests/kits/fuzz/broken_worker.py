"""A router in front of a worker that answers the bytes of the test, alone or as the D that is asked first of ours."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson

from tests.kits.fuzz.profile import Stage, check_error, tried
from tests.kits.fuzz.raw_worker import RawWorker
from tests.kits.router.cluster import Cluster, chat, eventually, make_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import httpx

    from baton_serve.router.placement import Prefilled
    from baton_serve.router.pool import Worker
    from tests.kits.router.stub_workers import StubWorker

#: Sockets on both sides keep some MB of what the router never reads.
SOCKETS_BYTES = 16 << 20
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


class RawFirst:
    """The policy that asks who is named raw, if it may."""

    def pick(self, workers: Sequence[Worker], prefilled: Prefilled) -> Worker:
        return next((worker for worker in workers if worker.worker_id == "raw"), workers[0])


class Broken:
    """A cluster whose raw worker answers what the test says. ``ours``: it is a D, a good P and a good D beside it."""

    def __init__(self, stage: Stage, *, ours: bool = False) -> None:
        self.stage = stage
        self.worker = RawWorker("decode" if ours else "both")
        self.worker.ours = ours
        self.area = (
            "a worker's named tokens, through the router" if ours else "a worker's HTTP answer, through the router"
        )
        self.good = whole(NAMED_EVENTS) if ours else GOOD
        self.others: list[StubWorker] = []
        stage.run(self._start())
        stage.at_end(self.cluster.close)

    async def _start(self) -> None:
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
            self.cluster.decode_legs.pick = RawFirst()
            self.worker.store = self.cluster.store
            self.others = [await self.cluster.add(role) for role in ("prefill", "decode")]
            for other in self.others:
                other.takes_any_ids = True
        self.cluster.announce()

    def ask(self, *, stream: bool) -> httpx.Response:
        return self.stage.run(self.cluster.post(chat(stream=stream)))

    def answered(self, answer: bytes, burst: Callable[[], Iterator[bytes]] | None = None, *, stream: bool) -> None:
        """This answer, and whatever it is made of: the client is told properly, and a good answer works afterwards."""
        tried[self.area] += 1
        self.worker.answer, self.worker.burst = answer, burst() if burst else ()
        check_answer(self.ask(stream=stream), stream=stream)
        assert self.worker.num_taken < SOCKETS_BYTES
        self._check_told()
        self.worker.answer, self.worker.burst = self.good, ()
        assert self.ask(stream=True).content.endswith(DONE)
        self.stage.run(asyncio.sleep(0))
        self.stage.run(eventually(self.cluster.is_idle))

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
