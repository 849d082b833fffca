"""Whether everything was given back: blocks, leases, requests, what is in Redis; file descriptors and threads."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import redis

from baton.torture.cluster import POLL_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.torture.cluster import Cluster

#: Longest time until nothing is held any more: a lease of 6 s that nobody renews, and what a busy machine adds.
SETTLE_S = 30.0
#: Kept connections close after 5 s at the latest; then file descriptors can be compared.
QUIET_S = 6.0
#: More than a process of the same kind had before anything was done to it. Connections come and go (Redis', those
#: between routers, UCX' to each engine that was ever met), and thread pools grow to their size when first used.
MORE_FDS, MORE_THREADS = 32, 16
#: What Redis says of the time to live of a key that has none.
NO_TTL = -1


@dataclass(frozen=True)
class Resources:
    """What the system counts of a process."""

    num_fds: int
    num_threads: int


async def settle(cluster: Cluster, timeout_s: float = SETTLE_S) -> dict[str, str]:
    """Wait until nobody holds anything; who still does after that time, with what. Empty is good."""
    deadline = time.monotonic() + timeout_s
    while (held := await _held(cluster)) and time.monotonic() < deadline:  # noqa: ASYNC110 (others are asked)
        await asyncio.sleep(POLL_S)
    return held


async def _held(cluster: Cluster) -> dict[str, str]:
    names = list(cluster.processes)
    answers = await asyncio.gather(*(_ask(cluster, name) for name in names))
    return {name: answer for name, answer in zip(names, answers, strict=True) if answer}


async def _ask(cluster: Cluster, name: str) -> str:
    try:
        if cluster.kinds[name] == "router":
            rows = await cluster.requests(name)
            return f"lists {len(rows)} requests: {', '.join(str(row['id']) for row in rows[:5])}" if rows else ""
        return what_is_held(await cluster.state(name))
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"does not answer: {error!r}"


def what_is_held(state: Mapping[str, Any]) -> str:
    """What a worker that nobody uses should not have; empty when all is free, or cached by content."""
    blocks, load = state["blocks"], state["load"]
    if state["ledger"] != "ok":
        return f"ledger: {state['ledger']}"
    if blocks["free"] + blocks["cached"] != blocks["total"] or blocks["leases"]:
        return f"blocks: {blocks}"
    busy = {key: load[key] for key in ("running", "waiting", "reading") if load[key]}
    return f"sequences: {busy}" if busy else ""


def what_stays(redis_url: str) -> str:
    """Keys in Redis that nothing would ever remove, so that the dead would leave them behind; empty when all expire."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        names = sorted(name for name in client.scan_iter() if client.ttl(name) == NO_TTL)
    return f"{len(names)} keys that never expire: {', '.join(names[:5])}" if names else ""


def resources(cluster: Cluster) -> dict[str, Resources]:
    """Of every process and of every rank (``decode-0/0``) that lives."""
    found = {}
    for name, process in cluster.processes.items():
        pids = {name: process.pid}
        if cluster.kinds[name] != "router":
            pids |= {f"{name}/{rank}": pid for rank, pid in enumerate(cluster.ranks(name))}
        for whose, pid in pids.items():
            with suppress(OSError):
                found[whose] = resources_of(pid)
    return found


def resources_of(pid: int) -> Resources:
    """Raises OSError when there is no such process."""
    folder = Path(f"/proc/{pid}")
    return Resources(len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir())))


def grown(before: Mapping[str, Resources], after: Mapping[str, Resources]) -> dict[str, str]:
    """Who has more than is tolerated, compared with the most that its kind had before. Empty is good."""
    told = {}
    for name, now in after.items():
        peers = [one for other, one in before.items() if _kind(other) == _kind(name)]
        fds, threads = max(one.num_fds for one in peers), max(one.num_threads for one in peers)
        if now.num_fds > fds + MORE_FDS or now.num_threads > threads + MORE_THREADS:
            told[name] = f"{now}, before at most {fds} file descriptors and {threads} threads"
    return told


def _kind(name: str) -> tuple[str, bool]:
    return name.partition("-")[0], "/" in name
