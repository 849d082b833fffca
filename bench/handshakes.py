"""Measures whether a prefill engine that hangs or is gone delays handshakes with others, and these the decoding.

    python -m bench.handshakes [--engines 32] [--runs 5]

The decode worker is real and has the demo model; the prefill engines are NIXL agents with a handshake port and nothing
else. While a stream runs on the worker, which knows no engine yet, one request for each engine is posted at once. Runs
in which all engines are well alternate with runs in which one never answers and one refuses, each with a new worker.

``first token``: time from posting a request to its first token, for the engines that are well in both kinds of run.
``longest gap``: longest time between two tokens of the stream meanwhile. Both are measured while the worker meets the
engines, and again, with as many requests of the same kind, when it knows them (``known``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from baton.demo import MODEL_NAME
from bench.decode_worker import HOST, TimedStream, decode_worker, handshake_of, longest_gap_s
from core.protocol.handoff import KVTransferParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from core.protocol.handshake import Handshake
    from core.protocol.status import Ready

#: Engines that misbehave: one accepts and never answers, and the port of the other one refuses connections.
NUM_BAD = 2
#: Processes that the engines share.
NUM_HELPERS = 2
NUM_BLOCKS = 4
#: Longest wait for first tokens, seconds; reaching it is a failure.
PATIENCE_S = 60.0
#: Seconds that the stream goes on alone before and after the requests.
LEAD_S = 0.5


@dataclass(frozen=True)
class MetEngine:
    """The id of a prefill engine, and the port for its handshake."""

    engine_id: str
    port: int


@dataclass
class Result:
    """What one run has measured, milliseconds."""

    first_token_ms: list[float] = field(default_factory=list)
    known_first_token_ms: list[float] = field(default_factory=list)
    gap_ms: float = 0.0
    known_gap_ms: float = 0.0


def request_for(peer: MetEngine, rng: random.Random) -> dict[str, object]:
    """A completion of a prompt that no engine has seen, with this engine as its P."""
    prompt = [rng.randrange(10, 400) for _ in range(16 * NUM_BLOCKS)]
    params = KVTransferParams(
        do_remote_prefill=True,
        do_remote_decode=False,
        remote_engine_id=peer.engine_id,
        remote_request_id=f"{rng.getrandbits(128):032x}",
        remote_host=HOST,
        remote_port=peer.port,
        remote_block_ids=[list(range(NUM_BLOCKS))],
        remote_num_tokens=len(prompt),
        lease_id=f"{rng.getrandbits(128):032x}",
        block_versions=[0] * NUM_BLOCKS,
        first_token=10,
        prompt_token_ids=prompt,
        seed=1,
    )
    return {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": 3,
        "stream": True,
        "ignore_eos": True,
        "kv_transfer_params": msgspec.to_builtins(params),
    }


def background() -> dict[str, object]:
    """The completion during which everything happens."""
    prompt = list(range(10, 42))
    return {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 1500, "stream": True, "ignore_eos": True}


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
        result.gap_ms = longest_gap_s(stream.token_times_s, begin_s, end_s) * 1e3
        firsts_s, begin_s, end_s = await post_all(worker, well, (), rng)
        result.known_first_token_ms = [first_s * 1e3 for first_s in firsts_s]
        await asyncio.sleep(LEAD_S)
        if watching.done():
            raise RuntimeError("the stream ended too early")
        result.known_gap_ms = longest_gap_s(stream.token_times_s, begin_s, end_s) * 1e3
        return result


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


@contextlib.asynccontextmanager
async def engines(like: Handshake, num_engines: int) -> AsyncIterator[list[MetEngine]]:
    """Prefill engines that a worker with this handshake can read from, in a few processes."""
    helpers: list[asyncio.subprocess.Process] = []
    try:
        for number in range(NUM_HELPERS):
            share = num_engines // NUM_HELPERS + (number < num_engines % NUM_HELPERS)
            wanted = {
                "num_engines": share,
                "compatibility_hash": like.compatibility_hash,
                "metadata": like.metadata.hex(),
            }
            argv = (sys.executable, "-m", "bench.handshake_peers", json.dumps(wanted))
            pipe = asyncio.subprocess.PIPE
            helpers.append(await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe))
        lines = [await helper.stdout.readline() for helper in helpers if helper.stdout is not None]
        yield [MetEngine(engine_id, port) for line in lines for engine_id, port in json.loads(line)]
    finally:
        await asyncio.gather(*(helper.communicate(b"") for helper in helpers))


@contextlib.asynccontextmanager
async def bad_engines() -> AsyncIterator[list[MetEngine]]:
    """An engine that accepts and never answers, and one whose port is bound by a socket that does not listen."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, HOST, 0)
    with socket.socket() as deaf:
        deaf.bind((HOST, 0))
        async with server:
            yield [
                MetEngine("hangs", server.sockets[0].getsockname()[1]),
                MetEngine("refuses", deaf.getsockname()[1]),
            ]


async def main(num_engines: int, num_runs: int, seed: int) -> None:
    """Alternate both kinds of run and print the results."""
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        async with decode_worker(folder) as worker:
            like = await handshake_of(worker)
        well = await stack.enter_async_context(engines(like, num_engines))
        bad = await stack.enter_async_context(bad_engines())
        others = well[NUM_BAD:]
        runs: dict[str, list[Result]] = {"all well": [], "two bad": []}
        print(
            f"{'':15} {'first token p50':>15} {'max':>6} {'known':>6} {'longest gap':>14} {'known':>6}   ms", flush=True
        )
        for number in range(num_runs):
            for name, wanted in (("all well", ()), ("two bad", bad)):
                # The same number of requests in both: two more that are well, or the two that are not.
                extra = () if wanted else well[:NUM_BAD]
                result = await run_once(folder, (*others, *extra), wanted, rng)
                result.first_token_ms = result.first_token_ms[: len(others)]
                runs[name].append(result)
                show(f"{name} {number + 1}", [result])
        for name, results in runs.items():
            show(f"{name} median", results)
        show_ratios(runs["all well"], runs["two bad"])


def show(name: str, results: Sequence[Result]) -> None:
    """Print a line with the medians of these runs."""
    middle = median(median(result.first_token_ms) for result in results)
    worst = median(max(result.first_token_ms) for result in results)
    known = median(median(result.known_first_token_ms) for result in results)
    gap, known_gap = median(r.gap_ms for r in results), median(r.known_gap_ms for r in results)
    print(f"{name:15} {middle:15.0f} {worst:6.0f} {known:6.0f} {gap:14.0f} {known_gap:6.0f}", flush=True)


def show_ratios(well: Sequence[Result], bad: Sequence[Result]) -> None:
    """Print how much the bad engines delay the others, and the handshakes the decoding: ratios of medians."""
    middle, worst = (
        median(pick(r.first_token_ms) for r in bad) / median(pick(r.first_token_ms) for r in well)
        for pick in (median, max)
    )
    print(f"first token of the others, two bad to all well: p50 x{middle:.2f}, max x{worst:.2f}")
    of_well, of_bad = (median(r.gap_ms for r in rs) / median(r.known_gap_ms for r in rs) for rs in (well, bad))
    print(f"longest gap, meeting to known: all well x{of_well:.2f}, two bad x{of_bad:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=32, help="prefill engines (default %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=5, help="runs of each kind; medians are shown (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (default %(default)s)")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.engines, arguments.runs, arguments.seed))
