"""Runs of one decode worker each, in which all engines are well and in which two are not, in turn."""

from __future__ import annotations

import asyncio
import random
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.client import Client, Stream
from bench.handshakes.engines import bad_engines, engines
from bench.handshakes.worker import background, decode_worker, handshake_of, request_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton_serve.core.protocol.status import Ready
    from bench.handshakes.engines import MetEngine

#: Engines that misbehave: one accepts and never answers, and the port of the other one refuses connections.
NUM_BAD = 2
#: Longest wait for first tokens, seconds; reaching it is a failure.
PATIENCE_S = 60.0
#: Seconds that the stream goes on alone before and after the requests.
LEAD_S = 0.5


@dataclass
class Result:
    """What one run has measured, milliseconds."""

    first_token_ms: list[float] = field(default_factory=list)
    known_first_token_ms: list[float] = field(default_factory=list)
    gap_ms: float = 0.0
    known_gap_ms: float = 0.0


async def run_once(folder: Path, well: Sequence[MetEngine], bad: Sequence[MetEngine], rng: random.Random) -> Result:
    """One worker, from its first handshake to requests for engines that it knows."""
    async with decode_worker(folder) as worker, Client() as client:
        await client.ask(worker.url, {**background(), "max_tokens": 1})
        stream = Stream()
        watching = asyncio.create_task(client.read(worker.url, background(), stream))
        try:
            await asyncio.sleep(LEAD_S)
            met_ms, *met_span = await post_all(client, worker, well, bad, rng)
            await asyncio.sleep(LEAD_S)
            known_ms, *known_span = await post_all(client, worker, well, (), rng)
            await asyncio.sleep(LEAD_S)
            if watching.done():
                raise RuntimeError("the stream ended too early") from watching.exception()
        finally:
            watching.cancel()
        gaps_ms = (longest_gap_s(stream.events_s, *span) * 1e3 for span in (met_span, known_span))
        return Result(met_ms, known_ms, *gaps_ms)


def longest_gap_s(times_s: Sequence[float], begin_s: float, end_s: float) -> float:
    """The longest pause between two neighbouring times, of the pauses that overlap with the span."""
    return max(b - a for a, b in pairwise(times_s) if b >= begin_s and a <= end_s)


async def post_all(
    client: Client, worker: Ready, well: Sequence[MetEngine], bad: Sequence[MetEngine], rng: random.Random
) -> tuple[list[float], float, float]:
    """Post one request for each engine at once, on connections that are open.

    Returns the milliseconds to the first token, for engines that are well; and when the first request was sent and
    the last first token came. Raises AnswerError.
    """
    # Those that misbehave come first: so they are most in the way.
    streams = [(Stream(), request_for(peer, rng)) for peer in (*bad, *well)]
    await client.connect(worker.url, len(streams))
    reads = [asyncio.create_task(client.read(worker.url, body, stream)) for stream, body in streams]
    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*reads[len(bad) :])
    finally:
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
    firsts_s = [stream.events_s[0] for stream, _ in streams[len(bad) :]]
    sent_s = [stream.sent_s for stream, _ in streams]
    firsts_ms = [1e3 * (first_s - at_s) for first_s, at_s in zip(firsts_s, sent_s[len(bad) :], strict=True)]
    return firsts_ms, sent_s[0], max(firsts_s)


@dataclass(frozen=True)
class Runs:
    """The results of both kinds of run. The runs with the same number are neighbours."""

    all_well: list[Result] = field(default_factory=list)
    two_bad: list[Result] = field(default_factory=list)


async def measure(num_engines: int, num_runs: int, seed: int) -> Runs:
    """Alternate both kinds of run; prints a line for each."""
    rng, runs = random.Random(seed), Runs()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        async with decode_worker(folder) as worker, Client() as client:
            like = await handshake_of(client, worker)
        well = await stack.enter_async_context(engines(like, num_engines))
        bad = await stack.enter_async_context(bad_engines())
        # The same number of requests in both: two more that are well, or the two that are not.
        others, extra = well[NUM_BAD:], well[:NUM_BAD]
        print(
            f"{'':15} {'first token p50':>15} {'max':>6} {'known':>6} {'longest gap':>14} {'known':>6}   ms", flush=True
        )
        for number in range(1, num_runs + 1):
            for name, results, more, wanted in (
                ("all well", runs.all_well, extra, ()),
                ("two bad", runs.two_bad, (), bad),
            ):
                result = await run_once(folder, (*others, *more), wanted, rng)
                result.first_token_ms = result.first_token_ms[: len(others)]
                results.append(result)
                show(f"{name} {number}", result)
    return runs


def show(name: str, result: Result) -> None:
    """Print a line for one run."""
    middle, worst, known = (
        median(result.first_token_ms),
        max(result.first_token_ms),
        median(result.known_first_token_ms),
    )
    print(
        f"{name:15} {middle:15.0f} {worst:6.0f} {known:6.0f} {result.gap_ms:14.0f} {result.known_gap_ms:6.0f}",
        flush=True,
    )
