"""One round: the same traffic through one router, while P's blocks are watched and D stalls.

First comes the traffic. Then, with nothing else to do, a few clients ask while D stalls, and leave before it goes on:
from then on nobody has a use for P's blocks.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import httpx

from bench.client import Client
from bench.vllm.blocks import Need, Sample, blocks_of, free_after_s, stranded
from bench.vllm.client import ask
from bench.vllm.servers import BLOCK_SIZE, LEASE_DURATION_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.vllm.client import Seen
    from bench.vllm.servers import Servers
    from bench.vllm.traffic import Asked, Shape

#: Seconds between two looks at P's blocks. vLLM notifies nobody of them.
LOOK_S = 0.1
#: After all clients have gone, both servers are idle at the latest after this many seconds: no lease that nobody
#: renews lasts as long.
IDLE_TIMEOUT_S = 5.0 * LEASE_DURATION_S
#: The clients that leave after the traffic: how many, and after how many seconds.
NUM_LEAVERS = 6
LEAVERS_STAY_S = 1.5
#: vLLM reports counters with the next step of its engine, not at once.
COUNTERS_S = 1.0


@dataclass(frozen=True)
class Right:
    """The right answer to a request, and the length of its prompt in tokens."""

    text: str
    prompt_tokens: int


@dataclass
class Round:
    """What one round showed."""

    seen: list[Seen]
    #: When D stalled, seconds of the clients' clock.
    stalled_s: float
    #: By how much the servers' counters rose.
    counts: dict[str, float]
    #: Block-seconds of P that no request of the traffic had a use for.
    stranded: float
    #: Of the clients that leave after the traffic: P's block-seconds after they had gone, and seconds until P was free.
    left_behind: float
    free_after_s: float
    #: Whether P and D had nothing left at the end.
    idle: bool


async def run_round(
    servers: Servers, url: str, asked: Sequence[Asked], right: Mapping[int, Right], shape: Shape
) -> Round:
    """Run the traffic. The servers must be idle."""
    before = await servers.counts()
    samples: list[Sample] = []
    watch = asyncio.create_task(_watch(servers, samples), name="P's blocks")
    try:
        async with Client() as client:
            stalled_s = time.perf_counter() + shape.calm_s
            seen = await _traffic(servers, client, url, asked, shape)
            idle = await _until_idle(servers)
            num_samples = len(samples)
            gone_s = await _leavers(servers, client, url, asked[:NUM_LEAVERS], shape)
        idle = await _until_idle(servers) and idle
        await asyncio.sleep(COUNTERS_S)
    finally:
        watch.cancel()
        await asyncio.wait({watch})
    after = await servers.counts()
    of_leavers = [one for one in samples[num_samples:] if one.at_s >= gone_s]
    return Round(
        seen=seen,
        stalled_s=stalled_s,
        counts={name: after[name] - before[name] for name in after},
        stranded=stranded(samples[:num_samples], [need_of(one, right[one.asked.number]) for one in seen]),
        left_behind=stranded(of_leavers, []),
        free_after_s=free_after_s(of_leavers, gone_s),
        idle=idle,
    )


async def _traffic(servers: Servers, client: Client, url: str, asked: Sequence[Asked], shape: Shape) -> list[Seen]:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_stall(servers, shape), name="stall of D")
        clients = [tasks.create_task(_come(client, url, one), name=f"client {one.number}") for one in asked]
    return [client.result() for client in clients]


async def _leavers(servers: Servers, client: Client, url: str, asked: Sequence[Asked], shape: Shape) -> float:
    """Returns when they had gone. D stalls on for a while afterwards."""
    leavers = (replace(one, leaves_after_s=LEAVERS_STAY_S, leaves_after_events=None) for one in asked)
    with servers.d_stalled():
        await asyncio.gather(*(ask(client, url, one) for one in leavers))
        gone_s = time.perf_counter()
        await asyncio.sleep(shape.stall_s)
    return gone_s


def need_of(seen: Seen, right: Right) -> Need:
    """How long a client had a use for P's blocks: until its second event, which only D can have computed, or its end.

    The first event may be P's own token, before D has read the blocks.
    """
    to_s = seen.pieces_s[1] if len(seen.pieces_s) > 1 else seen.ended_s
    return Need(seen.sent_s, to_s, blocks_of(right.prompt_tokens + 1, BLOCK_SIZE))


async def _come(client: Client, url: str, asked: Asked) -> Seen:
    await asyncio.sleep(asked.at_s)
    return await ask(client, url, asked)


async def _stall(servers: Servers, shape: Shape) -> None:
    await asyncio.sleep(shape.calm_s)
    with servers.d_stalled():
        await asyncio.sleep(shape.stall_s)


async def _watch(servers: Servers, samples: list[Sample]) -> None:
    while True:
        with suppress(httpx.HTTPError):
            used = await servers.used_blocks()
            samples.append(Sample(time.perf_counter(), used))
        await asyncio.sleep(LOOK_S)


async def _until_idle(servers: Servers) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            while True:  # vLLM notifies nobody
                if await servers.idle():
                    return True
                await asyncio.sleep(LOOK_S)
    return False
