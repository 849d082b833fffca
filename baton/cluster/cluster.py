"""Redis, workers and routers, each a process under a name."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import httpx
import redis
from prometheus_client.parser import text_string_to_metric_families

from baton_serve.baton.cluster.process import ROUTER, Process, in_time, make_child, send
from baton_serve.baton.demo import MODEL_DIR, MODEL_NAME
from baton_serve.baton.processes.child import ChildDiedError
from baton_serve.baton.processes.embedded_redis import EmbeddedRedis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from prometheus_client.samples import Sample

    from baton_serve.baton.cluster.process import Flags, Startable
    from baton_serve.baton.processes.child import Child

#: Longest wait for an answer of a process, seconds.
ANSWER_TIMEOUT_S = 10.0
#: Seconds that a process gets to end after it has reported that it gives up.
LAST_WORDS_S = 5.0
#: Seconds between two polls of a process that does not notify us.
POLL_S = 0.02
REDIS = "redis"
#: A connection is not used again when its server may be closing it: vLLM's do after 5 s.
SHORT_KEPT = httpx.Limits(keepalive_expiry=2.0)
#: The demo model on one thread, so that several workers fit on a small machine.
DEMO_WORKER: Flags = {"model": MODEL_DIR, "served-model-name": MODEL_NAME, "torch-threads": 1}


class Cluster:
    """``async with Cluster(folder, specs) as cluster``: every process serves, and routers know all workers.

    ``specs`` and ``processes`` are by name. Logs are in the folder. ``on_end(name, why)`` is called whenever a process
    has ended, wanted or not, until the cluster is closed. Closing gives each process ``stop_timeout_s`` to end by
    itself before it is killed.
    """

    def __init__(self, folder: Path, specs: Mapping[str, Startable], *, stop_timeout_s: float = 0.0) -> None:
        self.folder = folder
        self.specs = dict(specs)
        self.processes: dict[str, Process] = {}
        self.redis = EmbeddedRedis(log_path=folder / "redis.log")
        self.http = httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, limits=SHORT_KEPT, trust_env=False)
        self.on_end: Callable[[str, str], None] = lambda *_: None
        self._stop_timeout_s = stop_timeout_s
        self._watchers: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each process except Redis, by name."""
        return {name: spec.kind for name, spec in self.specs.items()}

    def named(self, *kinds: str) -> list[str]:
        """The names of all processes of some kinds, whether they run or not."""
        return [name for name, kind in self.kinds.items() if kind in kinds]

    async def __aenter__(self) -> Self:
        try:
            self.redis.start()
            routers = self.named(ROUTER)
            workers = [name for name in self.specs if name not in routers]
            await asyncio.gather(*map(self.start, workers))
            await asyncio.gather(*(self.start(name, num_workers=len(workers)) for name in routers))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End everything: routers, then workers, then Redis. Safe to call twice."""
        self._closing = True
        routers = self.named(ROUTER)
        await self._stop(name for name in self.processes if name in routers)
        await self._stop(name for name in self.processes if name not in routers)
        await asyncio.gather(*self._watchers)
        self.redis.stop()
        await self.http.aclose()

    async def _stop(self, names: Iterable[str]) -> None:
        await asyncio.gather(*(self.processes[name].child.stop(self._stop_timeout_s) for name in names))

    def abandon(self) -> None:
        """Kill everything and wait for nothing, just before this process ends."""
        for process in self.processes.values():
            process.child.kill()
        self.redis.kill()
        self.redis.stop()

    # --- starting

    async def add(self, name: str, spec: Startable, *, num_workers: int = 1) -> Process:
        """Start one more process, as ``start`` does."""
        self.specs[name] = spec
        return await self.start(name, num_workers=num_workers)

    async def start(self, name: str, *, failpoints: str = "", num_workers: int = 1) -> Process:
        """Start a process that does not run; returns when it serves. A router then reaches ``num_workers`` workers.

        Raises ChildDiedError when it ends instead, or does not serve in time.
        """
        child = self.child(name, failpoints)
        await child.start()
        assert child.log_path is not None
        process = Process(child, failpoints=failpoints, log_from=child.log_path.stat().st_size)
        self.processes[name] = process
        watcher = asyncio.create_task(self._watch(name, process), name=f"end of {name}")
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        ready = await in_time(name, self.specs[name], child.ready())
        process.url, process.internal_url = ready.url, ready.internal_url
        process.worker_id = ready.worker_id or self.specs[name].worker_id
        if self.specs[name].kind == ROUTER:
            await in_time(name, self.specs[name], self.routable(name, num_workers))
        if process.why:  # it was ready, and has died since
            raise ChildDiedError(process.why)
        process.up, process.served_s = True, time.monotonic()
        return process

    def child(self, name: str, failpoints: str) -> Child:
        """The child that is run under a name; not started yet."""
        return make_child(name, self.specs[name], self.folder, self.redis.url, failpoints)

    async def routable(self, name: str, num_workers: int) -> None:
        """Wait until a router answers that it is ready, as a load balancer would ask, and that it reaches
        ``num_workers`` workers.

        Raises ChildDiedError when the router ends instead.
        """
        process = self.processes[name]
        while not process.why:
            with suppress(httpx.HTTPError):
                answer = await self.http.get(f"{process.url}/ready")
                if answer.status_code == httpx.codes.OK and answer.json()["reachable_workers"] >= num_workers:
                    return
            await asyncio.sleep(POLL_S)
        raise ChildDiedError(process.why)

    async def _watch(self, name: str, process: Process) -> None:
        process.why = await process.child.ended()
        process.up = False
        if not self._closing:
            self.on_end(name, process.why)

    # --- ending, stopping and emptying

    async def ended(self, name: str) -> str:
        """Wait until the current start of a process and its ranks have ended; returns the line that says why."""
        child = self.processes[name].child
        why = await child.ended()
        await child.stop(LAST_WORDS_S)
        return why

    async def remove(self, name: str) -> str:
        """Send SIGTERM, and wait until the process has drained and ended by itself; returns the line that says how.

        The name is free afterwards.
        """
        self.signal(name, signal.SIGTERM)
        why = await self.ended(name)
        del self.processes[name], self.specs[name]
        return why

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Send a signal to the process only, not to its ranks. Returns False if the process has ended."""
        return send(self.redis.pid if name == REDIS else self.processes[name].pid, number)

    def stop(self, name: str) -> None:
        """Send SIGSTOP: the process is paused until ``go_on``, its ranks are not."""
        self.signal(name, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """Send SIGCONT, after ``stop``; without a stop this changes nothing."""
        self.signal(name, signal.SIGCONT)

    def kill(self, name: str) -> bool:
        """Kill a process with SIGKILL, in the way of its kind. Returns False if it has ended."""
        return self.specs[name].kill(self.processes[name].child)

    def ranks(self, name: str) -> list[int]:
        """The process ids of a worker's ranks, in order of rank; empty when they have ended."""
        return self.specs[name].ranks(self.processes[name].pid)

    def restart_redis(self) -> None:
        """Kill Redis and start it again, empty, under the same URL."""
        self.redis.kill()
        self.redis.start()

    def empty_redis(self) -> None:
        """Delete everything in Redis."""
        with redis.Redis.from_url(self.redis.url) as client:
            client.flushall()

    # --- looking

    def up(self, kind: str) -> list[str]:
        """The processes of a kind that serve now."""
        return [name for name, process in self.processes.items() if self.specs[name].kind == kind and process.up]

    async def state(self, name: str) -> dict[str, Any]:
        """The ``/internal/state`` of a worker or a router. Raises httpx.HTTPError."""
        return await self._get(f"{self.processes[name].internal_url}/internal/state")

    async def requests(self, name: str) -> list[dict[str, Any]]:
        """The requests that a router knows. Raises httpx.HTTPError."""
        rows = (await self._get(f"{self.processes[name].url}/admin/requests"))["requests"]
        assert isinstance(rows, list)
        return rows

    async def metrics(self, name: str) -> list[Sample]:
        """Every sample of a process's ``/metrics``. Raises httpx.HTTPError."""
        text = (await self.http.get(f"{self.processes[name].url}/metrics")).text
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    async def _get(self, url: str) -> dict[str, Any]:
        try:
            body = (await self.http.get(url)).json()
        except ValueError:
            raise httpx.DecodingError(f"no JSON from {url}") from None
        assert isinstance(body, dict)
        return body
