"""What is done to the router: requests are held, more and more of them; a burst comes; then decode engines open."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from bench.held.costs import Cpu, cpu_s
from bench.held.deadlines import Closest, DeadlineWatch
from bench.held.processes import Stage, num_processes, stage
from bench.held.stubs.decode import DecodeSpec
from bench.held.stubs.prefill import PrefillSpec
from bench.router.harness.cpu import usage_of

#: The router's settings, as they are by default.
LEASE_DURATION_MS = 6000
RENEW_INTERVAL_MS = 1500
PROMPT_BYTES = 1024
#: Requests at once that wait for their first tokens while the number of held ones is raised.
PENDING = 128
#: Seconds from the last request until the cost is measured: its lease was then renewed for the first time.
REST_S = RENEW_INTERVAL_MS / 1000
#: Seconds after which requests that are still not answered never will be.
PATIENCE_S = 90.0
POLL_S = 0.05


@dataclass(frozen=True)
class Load:
    """How many requests are held at most, at which numbers the cost is measured, and how many come in the burst."""

    num_prefill: int = 64
    num_decode: int = 16
    levels: tuple[int, ...] = (0, 5_000, 10_000, 20_000)
    num_burst: int = 5_000
    #: Seconds in which the cost of a level is measured: two whole rounds of renewals.
    window_s: float = 2 * RENEW_INTERVAL_MS / 1000

    @property
    def num_requests(self) -> int:
        """All together."""
        return self.levels[-1] + self.num_burst


@dataclass(frozen=True)
class Level:
    """What so many held requests cost: the router and Redis, as shares of a core, and bytes that the router has."""

    num_held: int
    router: Cpu
    redis: Cpu
    rss_bytes: int


@dataclass
class Outcome:
    """One run."""

    num_processes: int
    levels: list[Level] = field(default_factory=list)
    #: How close leases came to their deadlines while more and more were held, in the burst, and at the end.
    steady: Closest = field(default_factory=Closest)
    burst: Closest = field(default_factory=Closest)
    opened: Closest = field(default_factory=Closest)
    burst_s: float = 0.0
    drain_s: float = 0.0
    num_lapsed: int = 0
    num_done: int = 0
    num_failed: int = 0
    failure: str = ""
    #: Prefills and decodes: as many as requests, unless something was done twice.
    num_prefills: int = 0
    num_decodes: int = 0


async def measure(load: Load) -> Outcome:
    """Run it all once. Raises ChildDiedError, TimeoutError and EOFError."""
    max_num_seqs = -(-load.num_requests // load.num_decode)
    prefill = PrefillSpec("", load.num_prefill, max_num_seqs, LEASE_DURATION_MS)
    decode = DecodeSpec("", load.num_decode, max_num_seqs)
    most = 2 * load.num_requests
    flags: dict[str, Any] = {
        "max-requests": most,
        "max-queue-length": most,
        "max-connections": most,
        "lease-duration-ms": LEASE_DURATION_MS,
        "lease-renew-interval-ms": RENEW_INTERVAL_MS,
        "held-timeout-s": 600,
        "token-timeout-s": 600,
    }
    num_routers = num_processes(2 * load.num_requests)  # at the end each has a connection to its client and one to D
    if num_routers > 1:
        flags["processes"] = num_routers
    async with stage(prefill, decode, load.num_requests, PROMPT_BYTES, flags) as running:
        return await _measure(running, load)


async def _measure(running: Stage, load: Load) -> Outcome:
    outcome = Outcome(len(running.router_pids))
    watch: DeadlineWatch | None = None
    sent = 0
    try:
        for num_held in load.levels:
            if num_held:
                await _send(running, num_held - sent, PENDING)
                sent = num_held
                watch = watch or DeadlineWatch(running.cluster.redis.url, (await running.prefill.ask()).engine_ids)
            outcome.levels.append(await _level(running, num_held, load.window_s))
        assert watch is not None
        outcome.steady = watch.take()
        began_s = time.monotonic()
        await _send(running, load.num_burst, load.num_burst)
        outcome.burst_s = time.monotonic() - began_s
        await asyncio.sleep(load.window_s)
        outcome.burst = watch.take()
        began_s = time.monotonic()
        await _drain(running, load, outcome)
        outcome.drain_s = time.monotonic() - began_s
        outcome.opened = watch.take()
    finally:
        if watch is not None:
            watch.close()
    return outcome


async def _send(running: Stage, num: int, pending: int) -> None:
    """Send so many requests, and wait until each has its first token."""
    stats = await running.answered()
    wanted = stats.begun + stats.failed + num
    await running.send(num, pending)
    async with asyncio.timeout(PATIENCE_S):
        while stats.begun + stats.failed < wanted:
            await asyncio.sleep(POLL_S)
            stats = await running.answered()


async def _level(running: Stage, num_held: int, window_s: float) -> Level:
    router, redis = running.router_pids, [running.redis_pid]
    await asyncio.sleep(min(REST_S, window_s))
    began_s, router_before, redis_before = time.monotonic(), cpu_s(router), cpu_s(redis)
    await asyncio.sleep(window_s)
    seconds = time.monotonic() - began_s
    return Level(
        num_held,
        Cpu.between(router_before, cpu_s(router), seconds),
        Cpu.between(redis_before, cpu_s(redis), seconds),
        usage_of(router[0]).rss_bytes,
    )


async def _drain(running: Stage, load: Load, outcome: Outcome) -> None:
    """Have decode engines open, and wait until every request is answered."""
    await running.decode("open")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            stats = await running.answered()
            outcome.num_done, outcome.num_failed, outcome.failure = stats.done, stats.failed, stats.failure
            prefill = await running.prefill.ask()
            outcome.num_lapsed, outcome.num_prefills = prefill.lapsed, prefill.num_prefills
            outcome.num_decodes = await running.decode()
            if stats.done + stats.failed >= load.num_requests and not prefill.leases:
                return
            await asyncio.sleep(POLL_S)
