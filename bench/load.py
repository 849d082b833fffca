"""A load generator: each connection sends its next request when it has the answer to the last one.

``python -m bench.load PORT JSON`` prints one JSON line; the JSON is a ``Workload`` and ``seconds``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from statistics import quantiles
from typing import Any, cast

import httptools
import orjson
import uvloop

WARM_UP_S = 0.5


class LoadTally:
    """What all connections saw after the warm-up."""

    def __init__(self, begin_s: float, end_s: float) -> None:
        self.begin_s = begin_s
        self.end_s = end_s
        self.num_requests = 0
        self.num_events = 0
        self.num_errors = 0
        self.first_ms: list[float] = []
        self.all_ms: list[float] = []

    def done(self, sent_s: float, first_s: float, now_s: float, num_events: int, status: int) -> None:
        """Count one answer, if it was complete within the measured time."""
        if not self.begin_s <= now_s <= self.end_s:
            return
        self.num_requests += 1
        self.num_events += num_events
        self.num_errors += status != 200
        self.first_ms.append((first_s - sent_s) * 1e3)
        self.all_ms.append((now_s - sent_s) * 1e3)

    def summary(self) -> dict[str, float]:
        """Counts, rates per second, and quantiles of latencies in milliseconds."""
        seconds = self.end_s - self.begin_s
        return {
            "requests_per_s": self.num_requests / seconds,
            "events_per_s": self.num_events / seconds,
            "requests": self.num_requests,
            "events": self.num_events,
            "errors": self.num_errors,
            "first_p50_ms": _quantile(self.first_ms, 50),
            "first_p99_ms": _quantile(self.first_ms, 99),
            "whole_p50_ms": _quantile(self.all_ms, 50),
        }


def _quantile(values: list[float], percent: int) -> float:
    return quantiles(values, n=100)[percent - 1] if len(values) > 1 else float("nan")


class LoadConnection(asyncio.Protocol):
    """One connection, which asks again as soon as it has an answer."""

    def __init__(self, request: bytes, tally: LoadTally) -> None:
        self._request = request
        self._tally = tally
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._sent_s = self._first_s = 0.0
        self._num_events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._first_s, self._num_events = 0.0, 0
        self._sent_s = time.perf_counter()
        self._transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        if time.perf_counter() < self._tally.end_s:
            self._tally.num_errors += 1

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._first_s = self._first_s or time.perf_counter()
        self._num_events += body.count(b"data: ")

    def on_message_complete(self) -> None:
        now_s = time.perf_counter()
        self._tally.done(self._sent_s, self._first_s, now_s, self._num_events, self._parser.get_status_code())
        if now_s < self._tally.end_s:
            self._send()


def request_bytes(workload: dict[str, Any]) -> bytes:
    """The request that is sent over and over."""
    body = {
        "model": "stub",
        "messages": [{"role": "user", "content": "x" * workload["prompt_bytes"]}],
        "max_tokens": workload["tokens"],
        "stream": workload["stream"],
        "user": str(workload["pace_us"]),
    }
    raw = orjson.dumps(body)
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(raw) + raw


async def main(port: int, workload: dict[str, Any]) -> None:
    """Run one workload and print the summary."""
    begin_s = time.perf_counter() + WARM_UP_S
    tally = LoadTally(begin_s, begin_s + workload["seconds"])
    request = request_bytes(workload)
    loop = asyncio.get_running_loop()
    for _ in range(workload["connections"]):
        await loop.create_connection(lambda: LoadConnection(request, tally), "127.0.0.1", port)
    await asyncio.sleep(tally.end_s - time.perf_counter())
    print(json.dumps(tally.summary()))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), json.loads(sys.argv[2])))
