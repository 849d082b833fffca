"""Whether everything was released after the run: blocks, leases, requests, places on workers and keys in Redis; file
descriptors, threads and tasks.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import redis

from baton_serve.baton.cluster.cluster import POLL_S
from baton_serve.baton.cluster.process import VllmSpec
from baton_serve.core.leases.in_redis.keys import leases_key
from baton_serve.core.redis_client import connect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client.samples import Sample

    from baton_serve.baton.cluster.cluster import Cluster

#: Longest time until nothing is held any more: a lease ends 6 s after its last renewal; the rest is for a busy machine.
SETTLE_S = 30.0
#: Idle connections close within 5 s; after this time file descriptors can be compared.
QUIET_S = 6.0
#: How many more of these a process may have than any process of its kind had before the first fault. Connections come
#: and go (to Redis, between routers, UCX's to each engine it was ever connected to), and thread pools grow to their
#: size when first used.
MORE_FDS, MORE_THREADS = 32, 16
#: The same for tasks: calls to Redis or to another process may be under way.
MORE_TASKS = 16
#: What vLLM says about its requests, and about the part of its blocks that they and leases hold.
VLLM_HOLDS = frozenset({"vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting"})
REDIS_TIMEOUT_S = 5.0
#: What Redis answers for the time to live of a key that never expires.
NO_TTL = -1


@dataclass(frozen=True)
class Resources:
    """How many file descriptors, threads and asyncio tasks a process has; a rank has no asyncio tasks."""

    num_fds: int
    num_threads: int
    num_tasks: int = 0


async def settle(cluster: Cluster, timeout_s: float = SETTLE_S) -> dict[str, str]:
    """Wait until no process holds anything. Returns what processes still hold after that time, by name; empty when none
    holds anything.
    """
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
        if isinstance(cluster.specs[name], VllmSpec):
            return what_vllm_holds(await cluster.metrics(name))
        state = await cluster.state(name)
        return what_a_router_holds(state) if cluster.kinds[name] == "router" else what_is_held(state)
    except httpx.HTTPError as error:
        return f"does not answer: {error!r}"


def what_is_held(state: Mapping[str, Any]) -> str:
    """What a worker without requests still has; empty when all its blocks are free or cached."""
    blocks, load = state["blocks"], state["load"]
    if state["ledger"] != "ok":
        return f"ledger: {state['ledger']}"
    if blocks["free"] + blocks["cached"] != blocks["total"] or blocks["leases"]:
        return f"blocks: {blocks}"
    busy = {key: load[key] for key in ("running", "waiting", "reading") if load[key]}
    return f"sequences: {busy}" if busy else ""


def what_vllm_holds(samples: Iterable[Sample]) -> str:
    """What a vLLM server without requests still has, by its own metrics; empty when it has nothing."""
    busy = {sample.name: sample.value for sample in samples if sample.name in VLLM_HOLDS and sample.value}
    return ", ".join(f"{name}: {value:g}" for name, value in busy.items())


def what_a_router_holds(state: Mapping[str, Any]) -> str:
    """What a router without requests still has; empty when it has nothing."""
    busy = {key: value for key, value in state.items() if value and key != "tasks"}
    return ", ".join(f"{key}: {value}" for key, value in busy.items())


async def settle_redis(cluster: Cluster, timeout_s: float = SETTLE_S) -> str:
    """Wait until Redis has nothing of any request. Returns what it still has after that time; empty when it has
    nothing.
    """
    own = [name for name, spec in cluster.specs.items() if not isinstance(spec, VllmSpec)]  # vLLM keeps leases itself
    engines = [one.worker_id for name, one in cluster.processes.items() if name in own and one.worker_id]
    deadline = time.monotonic() + timeout_s
    while (stays := what_stays(cluster.redis.url, engines)) and time.monotonic() < deadline:  # noqa: ASYNC110 (it is asked)
        await asyncio.sleep(POLL_S)
    return stays


def what_stays(redis_url: str, engines: Iterable[str] = ()) -> str:
    """The leases of these engines, or else the keys that never expire, as left behind by processes that die; empty when
    there are neither.
    """
    with connect(redis.Redis, redis_url, REDIS_TIMEOUT_S, retries=1) as client:
        leases = {engine: client.zcard(leases_key(engine)) for engine in engines}
        if held := {engine: count for engine, count in leases.items() if count}:
            return f"leases by engine: {held}"
        names = sorted(name.decode() for name in client.scan_iter() if client.ttl(name) == NO_TTL)
    return f"{len(names)} keys that never expire: {', '.join(names[:5])}" if names else ""


async def resources(cluster: Cluster) -> dict[str, Resources]:
    """The resources of every living process and rank (``decode-0/0``), by name."""
    found = {}
    for name, process in cluster.processes.items():
        num_tasks = await _num_tasks(cluster, name)
        pids = {name: process.pid}
        if cluster.kinds[name] != "router":
            pids |= {f"{name}/{rank}": pid for rank, pid in enumerate(cluster.ranks(name))}
        for whose, pid in pids.items():
            with suppress(OSError):
                found[whose] = resources_of(pid, num_tasks if whose == name else 0)
    return found


async def _num_tasks(cluster: Cluster, name: str) -> int:
    with suppress(httpx.HTTPError):
        return int((await cluster.state(name))["tasks"])
    return 0  # settle() has reported a process that does not answer


def resources_of(pid: int, num_tasks: int = 0) -> Resources:
    """The resources of one process, as the system counts them. Raises OSError when there is no such process."""
    folder = Path(f"/proc/{pid}")
    return Resources(len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir())), num_tasks)


def grown(before: Mapping[str, Resources], after: Mapping[str, Resources]) -> dict[str, str]:
    """The processes that have much more than any process of their kind had before: by name, one line each."""
    told = {}
    for name, now in after.items():
        peers = [one for other, one in before.items() if _kind(other) == _kind(name)]
        fds, threads = max(one.num_fds for one in peers), max(one.num_threads for one in peers)
        tasks = max(one.num_tasks for one in peers)
        more = (now.num_fds - fds, now.num_threads - threads, now.num_tasks - tasks)
        if any(one > most for one, most in zip(more, (MORE_FDS, MORE_THREADS, MORE_TASKS), strict=True)):
            told[name] = f"{now}, before at most {fds} file descriptors, {threads} threads and {tasks} tasks"
    return told


def _kind(name: str) -> tuple[str, bool]:
    return name.partition("-")[0], "/" in name
