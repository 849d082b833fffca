"""How long P keeps blocks that no D will ever read, by the reason why no D will."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx

from baton_serve.baton.cluster.process import pause
from baton_serve.baton.torture.clients.client import Manner, ask_once, make_client
from baton_serve.baton.torture.records import Attempt, Question
from baton_serve.baton.torture.verdict.settle import SETTLE_S, what_is_held
from baton_serve.core.process.task_end import end_task

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from baton_serve.baton.cluster.cluster import Cluster
    from baton_serve.baton.torture.faults.nemesis import Nemesis

    #: Makes one cause happen once, and returns the milliseconds until all blocks were free.
    Way = Callable[[Cluster, Nemesis, "_Crowd"], Awaitable[float]]

#: The number of streams that run when their client leaves or their router dies, and of requests that are sent to a D
#: before it dies.
NUM_STREAMS, NUM_READS = 4, 9
#: Seconds between two looks at the workers, and so the precision of the numbers.
LOOK_S = 0.002


class CostError(Exception):
    """The situation that was to be measured did not come about. The message is one line for a person."""


async def measure(
    cluster: Cluster, nemesis: Nemesis, rng: random.Random, tokens: Sequence[int], rounds: int
) -> dict[str, list[float]]:
    """Measure the milliseconds until blocks were free: by cause, one value for each round. Raises CostError.

    Nothing else may happen on the cluster meanwhile.
    """
    found: dict[str, list[float]] = {}
    async with make_client() as http:
        for cause, way in _possible(cluster).items():
            for _ in range(rounds):
                crowd = _Crowd(cluster, http, rng, tokens)
                try:
                    found.setdefault(cause, []).append(await way(cluster, nemesis, crowd))
                except CostError as error:
                    raise CostError(f"{cause}: {error}") from None
                finally:
                    await crowd.leave()
                    await nemesis.heal()
    return found


def _possible(cluster: Cluster) -> dict[str, Way]:
    """The causes that can be measured. The last process of a kind is not killed: none would be left to continue."""
    ways: dict[str, Way] = {"a client left": _client_leaves}
    if len(cluster.up("router")) > 1:
        ways["a router died"] = _router_dies
    if len(cluster.up("decode")) > 1:
        ways["a D died"] = _decode_dies
    return ways


class _Crowd:
    """Streams that run at the same time."""

    def __init__(self, cluster: Cluster, http: httpx.AsyncClient, rng: random.Random, tokens: Sequence[int]) -> None:
        self.attempts: list[Attempt] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._cluster, self._http, self._rng, self._tokens = cluster, http, rng, tokens

    def come(self, router: str, count: int, max_tokens: int) -> None:
        """Begin ``count`` more streams at ``router``, each with a prompt that no worker has cached."""
        url = self._cluster.processes[router].url
        for _ in range(count):
            prompt = self._rng.choices(self._tokens, k=300)
            body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
            attempt = Attempt(0, router, True, time.monotonic())
            self.attempts.append(attempt)
            work = ask_once(self._http, url, Question(0, False, body), Manner(), attempt)
            self.tasks.append(asyncio.create_task(work))

    async def decoding(self) -> None:
        """Wait until a D decodes every stream: the first two tokens may come before D decodes.

        Raises CostError when one ends instead.
        """

        async def all_decode() -> bool:
            for attempt, task in zip(self.attempts, self.tasks, strict=True):
                if task.done():
                    raise CostError(f"{attempt.request_id} at {attempt.router} ended: {attempt.ending} {attempt.error}")
            return all(len(attempt.answer.text) > 20 for attempt in self.attempts)

        await until(all_decode)

    @property
    def num_running(self) -> int:
        return sum(not task.done() for task in self.tasks)

    async def leave(self) -> None:
        """Close the connections of all clients."""
        for task in self.tasks:
            await end_task(task)


async def _client_leaves(cluster: Cluster, _: Nemesis, crowd: _Crowd) -> float:
    crowd.come(cluster.up("router")[0], NUM_STREAMS, 4000)
    await crowd.decoding()
    began_s = time.monotonic()
    await crowd.leave()
    return await _ms_until_idle(cluster, began_s)


async def _router_dies(cluster: Cluster, nemesis: Nemesis, crowd: _Crowd) -> float:
    name = cluster.up("router")[-1]
    crowd.come(name, NUM_STREAMS, 4000)
    await crowd.decoding()
    began_s = time.monotonic()
    nemesis.hurt("kill", name)
    return await _ms_until_idle(cluster, began_s)


async def _decode_dies(cluster: Cluster, nemesis: Nemesis, crowd: _Crowd) -> float:
    """Pause the ranks of a D, so that its reads do not end; then kill it, and another D reads the same blocks."""
    name = cluster.up("decode")[-1]
    for pid in cluster.ranks(name):
        pause(pid)

    async def only_it_is_left() -> bool:
        if not crowd.num_running:  # none was sent yet, or all earlier ones went to another D
            crowd.come(cluster.up("router")[0], NUM_READS, 2)
        return crowd.num_running == await num_leases(cluster) > 0

    await until(only_it_is_left)
    began_s = time.monotonic()
    nemesis.hurt("kill", name)

    async def none() -> bool:
        return await num_leases(cluster) == 0

    await until(none)
    return (time.monotonic() - began_s) * 1e3


async def _ms_until_idle(cluster: Cluster, began_s: float) -> float:
    async def idle() -> bool:
        states = await asyncio.gather(*map(cluster.state, workers(cluster)))
        return not any(map(what_is_held, states))

    await until(idle)
    return (time.monotonic() - began_s) * 1e3


def workers(cluster: Cluster) -> list[str]:
    """The workers that serve now."""
    return [*cluster.up("prefill"), *cluster.up("decode")]


async def num_leases(cluster: Cluster) -> int:
    """The number of leases of all P together."""
    states = await asyncio.gather(*map(cluster.state, cluster.up("prefill")))
    return sum(state["blocks"]["leases"] for state in states)


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Call ``check`` again and again until it returns True. Raises CostError after ``SETTLE_S``."""
    try:
        async with asyncio.timeout(SETTLE_S):
            while True:
                with suppress(httpx.HTTPError):
                    if await check():
                        return
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise CostError(f"not so after {SETTLE_S:g} s: {check.__name__}") from None
