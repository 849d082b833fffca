"""The processes of one Baton, by name, each of which may be killed, stopped and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from baton.child import COMMAND, Child, ChildDiedError, ChildSpec
from baton.embedded_redis import EmbeddedRedis
from demo import MODEL_DIR, MODEL_NAME
from protocol.failpoints import VARIABLE as FAILPOINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STOP_TIMEOUT_S = 5.0
#: Between two questions to a process that has no event for us.
POLL_S = 0.02
REDIS = "redis"
Flags = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """How many of each kind, and with which flags: ``{"num-blocks": 64}``; True is a bare flag."""

    prefill: int = 2
    decode: int = 3
    routers: int = 2
    worker_flags: Flags = field(default_factory=dict)
    router_flags: Flags = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each process but Redis, by name."""
        counts = {"prefill": self.prefill, "decode": self.decode, "router": self.routers}
        return {f"{kind}-{i}": kind for kind, count in counts.items() for i in range(count)}


@dataclass
class Process:
    """One start of a process. It is ``up`` while clients may count on it."""

    child: Child
    url: str = ""
    internal_url: str = ""
    up: bool = False
    failpoints: str = ""
    #: Why it has ended, once it has.
    why: str = ""

    @property
    def pid(self) -> int:
        assert self.child.pid is not None
        return self.child.pid


class Cluster:
    """``async with Cluster(folder, shape) as cluster``: everything runs. Logs are in the folder.

    ``on_end(name, why)`` is called whenever a process has ended, wanted or not.
    """

    def __init__(self, folder: Path, shape: Shape, on_end: Callable[[str, str], None] = lambda *_: None) -> None:
        self.folder = folder
        self.shape = shape
        self.kinds = shape.kinds
        self.processes: dict[str, Process] = {}
        self.redis = EmbeddedRedis(log_path=folder / "redis.log")
        self.on_end = on_end
        self._watchers: set[asyncio.Task[None]] = set()
        self._closing = False

    async def __aenter__(self) -> Self:
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        try:
            self.redis.start()
            names = sorted(self.kinds, key=lambda name: self.kinds[name] == "router")
            workers = [name for name in names if self.kinds[name] != "router"]
            await asyncio.gather(*map(self.start, workers))
            await asyncio.gather(*(self.start(name, num_workers=len(workers)) for name in names[len(workers) :]))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End everything; safe to call twice."""
        self._closing = True
        for process in self.processes.values():
            process.child.kill()
        await asyncio.gather(*(process.child.stop(STOP_TIMEOUT_S) for process in self.processes.values()))
        await asyncio.gather(*self._watchers)
        self.redis.stop()
        await self.http.close()

    # --- starting and ending

    async def start(self, name: str, *, failpoints: str = "", num_workers: int = 1) -> None:
        """Start a process that does not run; returns when it serves. A router then knows so many workers.

        Raises ChildDiedError when it ends instead.
        """
        kind = self.kinds[name]
        flags = {
            "redis-url": self.redis.url,
            **(self._router_flags() if kind == "router" else self._worker_flags(kind)),
        }
        child = start_spec(name, "router" if kind == "router" else "worker", flags, self.folder, failpoints)
        await child.start()
        process = self.processes[name] = Process(child, failpoints=failpoints)
        watcher = asyncio.create_task(self._watch(name, process), name=f"end of {name}")
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        ready = await child.ready()
        process.url, process.internal_url = ready.url, ready.internal_url
        if kind == "router":
            await self._until_it_knows(process, num_workers)
        process.up = True

    def _worker_flags(self, role: str) -> Flags:
        own = {
            "role": role,
            "model": MODEL_DIR,
            "served-model-name": MODEL_NAME,
            "torch-threads": 1,
            "dtype": "float32",
        }
        return {**own, "num-blocks": 512, **self.shape.worker_flags}

    def _router_flags(self) -> Flags:
        return {"port": 0, "log-requests": True, **self.shape.router_flags}

    async def _until_it_knows(self, process: Process, num_workers: int) -> None:
        """It can serve, as a load balancer would ask before it sends anybody there."""
        while not process.why:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with self.http.get(f"{process.url}/ready") as answer:
                    body = await answer.json()
                    if answer.status == 200 and body["reachable_workers"] >= num_workers:
                        return
            await asyncio.sleep(POLL_S)
        raise ChildDiedError(process.why)

    async def _watch(self, name: str, process: Process) -> None:
        process.why = await process.child.ended()
        process.up = False
        if not self._closing:
            self.on_end(name, process.why)

    async def ended(self, name: str) -> None:
        """Wait until the current start of a process is no more, ranks included."""
        await self.processes[name].child.ended()
        await self.processes[name].child.stop(STOP_TIMEOUT_S)

    # --- what may be done to a process

    def signal(self, name: str, number: signal.Signals) -> None:
        """To the process itself, without its ranks, if it lives."""
        pid = self.redis.pid if name == REDIS else self.processes[name].pid
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def stop(self, name: str) -> None:
        """It stands still until ``go_on``; its ranks do not."""
        self.signal(name, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """After ``stop``; otherwise nothing."""
        self.signal(name, signal.SIGCONT)

    def kill_rank(self, name: str, rank: int = 0) -> None:
        """SIGKILL to one rank of a worker, if it has that."""
        with suppress(ProcessLookupError):
            os.kill(self.ranks(name)[rank], signal.SIGKILL)

    def ranks(self, name: str) -> list[int]:
        """The process ids of a worker's ranks, in their order. Raises ProcessLookupError when they are gone."""
        pid = self.processes[name].pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            found = {rank_of(int(child)): int(child) for child in children}
        except OSError as error:
            raise ProcessLookupError(name) from error
        if not found:
            raise ProcessLookupError(name)
        return [found[rank] for rank in sorted(found)]

    def restart_redis(self) -> None:
        """It dies and comes back empty, under the same URL."""
        self.redis.kill()
        self.redis.start()

    # --- looking

    def up(self, kind: str) -> list[str]:
        """The processes of a kind that serve now."""
        return [name for name, process in self.processes.items() if self.kinds[name] == kind and process.up]

    async def state(self, name: str) -> dict[str, Any]:
        """``/internal/state`` of a worker. Raises aiohttp.ClientError, TimeoutError."""
        return await self._get(f"{self.processes[name].internal_url}/internal/state")

    async def requests(self, name: str) -> list[dict[str, Any]]:
        """The requests that a router knows of. Raises aiohttp.ClientError, TimeoutError."""
        rows = (await self._get(f"{self.processes[name].url}/admin/requests"))["requests"]
        assert isinstance(rows, list)
        return rows

    async def _get(self, url: str) -> dict[str, Any]:
        async with self.http.get(url) as answer:
            body = await answer.json()
            assert isinstance(body, dict)
            return body


def start_spec(name: str, verb: str, flags: Mapping[str, Any], folder: Path, failpoints: str = "") -> Child:
    """A child that is not started yet, with no settings but these."""
    argv = [*COMMAND, verb]
    for flag, value in flags.items():
        argv += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("BATON_")}
    environ |= {"PYTHONUNBUFFERED": "1"} | ({FAILPOINTS: failpoints} if failpoints else {})
    return Child(ChildSpec(name, tuple(argv), environ), folder / f"{name}.log", lambda *_: None)


def rank_of(pid: int) -> int:
    """A rank's number stands in the start parameters on its command line."""
    spec = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2]
    rank = json.loads(spec).get("rank", 0)
    assert isinstance(rank, int)
    return rank
