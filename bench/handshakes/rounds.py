"""Runs of one decode worker each, in which all engines are well and in which two are not, in turn."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.decode_worker import TimedStream, decode_worker, handshake_of, longest_gap_s
from bench.handshakes.completions import background, request_for
from bench.handshakes.engines import bad_engines, engines

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
    async with decode_worker(folder) as worker, AsyncExitStack() as stack:
        stream = await TimedStream.open(worker, background())
        stack.callback(stream.close)
        stream.post()
        await stream.first_token_s()
        watching = asyncio.create_task(stream.run())
        stack.callback(watching.cancel)
        await asyncio.sleep(LEAD_S)
        result = Result()
        firsts_s, begin_s, end_s = await post_all(worker, well, bad, rng)
        result.first_token_ms = [first_s * 1e3 for first_s in firsts_s]
        await asyncio.sleep(LEAD_S)
        result.gap_ms = _longest_gap_ms(stream, watching, begin_s, end_s)
        firsts_s, begin_s, end_s = await post_all(worker, well, (), rng)
        result.known_first_token_ms = [first_s * 1e3 for first_s in firsts_s]
        await asyncio.sleep(LEAD_S)
        result.known_gap_ms = _longest_gap_ms(stream, watching, begin_s, end_s)
        return result


def _longest_gap_ms(stream: TimedStream, watching: asyncio.Task[None], begin_s: float, end_s: float) -> float:
    """Raises RuntimeError if the stream is over: there may have been no token since."""
    if watching.done():
        raise RuntimeError("the stream ended too early")
    return longest_gap_s(stream.token_times_s, begin_s, end_s) * 1e3


async def post_all(
    worker: Ready, well: Sequence[MetEngine], bad: Sequence[MetEngine], rng: random.Random
) -> tuple[list[float], float, float]:
    """Post one request for each engine at once: seconds to the first token, for those that are well; begin and end."""
    async with AsyncExitStack() as stack:
        # Those that misbehave come first: so they are most in the way.
        streams = [await TimedStream.open(worker, request_for(peer, rng)) for peer in (*bad, *well)]
        for stream in streams:
            stack.callback(stream.close)
        for stream in streams:
            stream.post()
        async with asyncio.timeout(PATIENCE_S):
            firsts_s = await asyncio.gather(*(stream.first_token_s() for stream in streams[len(bad) :]))
        return firsts_s, streams[0].posted_s, time.monotonic()


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
        async with decode_worker(folder) as worker:
            like = await handshake_of(worker)
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
