"""One round: the same traffic through one router, while D stalls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from baton_serve.baton.demo import MODEL_NAME
from bench.client import AnswerError, Client, Stream
from bench.connector.pair import Pair
from bench.vllm.servers import LEASE_DURATION_S, are_idle, counts
from bench.vllm.traffic import Asked, Shape

#: A request that has not ended after this many seconds is lost.
HUNG_AFTER_S = 120.0
#: Seconds between two looks at the servers.
LOOK_S = 0.1
#: After all clients have gone, both servers are idle at the latest after this many seconds: no lease that nobody
#: renews lasts as long.
IDLE_TIMEOUT_S = 5.0 * LEASE_DURATION_S
#: vLLM reports counters with the next step of its engine, not at once.
COUNTERS_S = 1.0


@dataclass
class Seen(Stream):
    """What one client saw."""

    asked: Asked = field(kw_only=True)
    #: The client has left, as it was to.
    left: bool = False
    #: Why there is no whole answer, when the client did not leave.
    error: str = ""


@dataclass
class Round:
    """What one round showed."""

    seen: list[Seen]
    #: When D stalled, seconds of the clients' clock.
    stalled_s: float
    #: By how much the servers' counters rose.
    counts: dict[str, float]
    #: Whether P and D had nothing left at the end.
    idle: bool


async def run_round(servers: Pair, url: str, asked: Sequence[Asked], shape: Shape) -> Round:
    """Run the traffic. The servers must be idle."""
    before = await counts(servers)
    stalled_s = time.perf_counter() + shape.calm_s
    async with Client() as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(_stall(servers, shape), name="stall of D")
        clients = [tasks.create_task(_come(client, url, one), name=f"client {one.number}") for one in asked]
    idle = await _until_idle(servers)
    await asyncio.sleep(COUNTERS_S)
    after = await counts(servers)
    return Round(
        [one.result() for one in clients], stalled_s, {name: after[name] - before[name] for name in after}, idle
    )


async def _come(client: Client, url: str, asked: Asked) -> Seen:
    await asyncio.sleep(asked.at_s)
    return await ask(client, url, asked)


async def ask(client: Client, url: str, asked: Asked) -> Seen:
    """Ask, read the stream and leave when it is time to, until the request has ended in whatever way."""
    seen = Seen(asked=asked)
    body = {"model": MODEL_NAME, **asked.body}
    try:
        async with asyncio.timeout(HUNG_AFTER_S), asyncio.timeout(asked.leaves_after_s) as leaving:
            await client.read(url, body, seen, stop_after=asked.leaves_after_events)
        seen.left = not seen.complete
    except TimeoutError:
        seen.left = leaving.expired()
        seen.error = "" if seen.left else "lost"
    except AnswerError as error:
        seen.error = str(error)
    return seen


async def _stall(servers: Pair, shape: Shape) -> None:
    await asyncio.sleep(shape.calm_s)
    with servers.d_stopped():
        await asyncio.sleep(shape.stall_s)


async def _until_idle(servers: Pair) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            while not await are_idle(servers):  # noqa: ASYNC110 (vLLM notifies nobody)
                await asyncio.sleep(LOOK_S)
            return True
    return False
