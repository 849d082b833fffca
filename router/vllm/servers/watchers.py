"""One task per vLLM server that watches it, and one per host name that looks it up."""

from __future__ import annotations

import asyncio
from collections import Counter

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.vllm.kind import VLLM
from baton_serve.router.vllm.leases.vllm_leases import VllmLeases
from baton_serve.router.vllm.servers.expiries import Expiries
from baton_serve.router.vllm.servers.names import HostName, Resolve, looked_up, resolve
from baton_serve.router.vllm.servers.pairs import pair_problems
from baton_serve.router.vllm.servers.problems import About, Problems
from baton_serve.router.vllm.servers.server import Server
from baton_serve.router.vllm.servers.side_channel import SideChannel
from baton_serve.router.vllm.servers.watcher import Watcher


class VllmWorkers:
    """Follows the pool: what is added with a vLLM address is watched until it is removed. ``close`` it at the end."""

    def __init__(
        self,
        pool: WorkerPool,
        upstream: HttpClient,
        leases: VllmLeases,
        *,
        poll_interval_s: float,
        dns_interval_s: float,
        unexpected_expiries: Counter[str],
        outcomes: Counter[str],
        lookup: Resolve = resolve,
    ) -> None:
        """``unexpected_expiries`` and ``outcomes`` are counters of ``Metrics``."""
        self._pool = pool
        self._upstream = upstream
        self._leases = leases
        self._poll_interval_s = poll_interval_s
        self._dns_interval_s = dns_interval_s
        self._outcomes = outcomes
        self._lookup = lookup
        self._problems = Problems()
        self._expiries = Expiries(leases, unexpected_expiries)
        self._watchers: dict[Worker, asyncio.Task[None]] = {}
        self._names: dict[str, asyncio.Task[None]] = {}
        pool.on_static.append(self._added)
        pool.on_left.append(self._left)
        pool.on_came.append(self._look_at_pairs)

    def __repr__(self) -> str:
        return f"<VllmWorkers {len(self._watchers)} watched, {len(self._names)} host names>"

    async def close(self) -> None:
        """Stop asking."""
        tasks = [*self._watchers.values(), *self._names.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _added(self, worker: Worker) -> None:
        if worker.kind is not VLLM:
            return
        given = looked_up(worker)
        if given is not None and worker.worker_id not in self._names:
            name = HostName(given, worker.role, self._pool, self._problems, self._lookup)
            self._names[worker.worker_id] = asyncio.create_task(self._follow(name))
        else:
            self._watch(worker)

    async def _follow(self, name: HostName) -> None:
        """Look the name up. A worker under the name itself is watched once it is known to be the only one."""
        while True:
            if await name.look_up():
                for worker in name.workers():
                    self._watch(worker)
            await asyncio.sleep(self._dns_interval_s)

    def _watch(self, worker: Worker) -> None:
        if worker in self._watchers or worker.server.side_channel is None:
            return
        watcher = Watcher(
            worker,
            self._pool,
            Server(self._upstream, worker),
            SideChannel(self._leases, worker.server.side_channel, worker.server.handshake_port),
            self._problems,
            self._expiries,
            self._outcomes,
        )
        self._watchers[worker] = asyncio.create_task(watcher.run(self._poll_interval_s))

    def _left(self, worker: Worker) -> None:
        if worker in self._watchers:
            self._watchers.pop(worker).cancel()
        self._problems.forget(worker)
        self._expiries.forget(worker)
        name = "" if worker.given is None else worker.given.worker_id
        if name in self._names and not self._pool.given_as(name):
            self._names.pop(name).cancel()
        self._look_at_pairs()

    def _look_at_pairs(self) -> None:
        for worker, text in pair_problems(self._pool).items():
            self._problems.note(worker, About.PAIRS, text)
