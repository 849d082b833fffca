"""The processes of one Baton, by name, each of which may be killed, stopped and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import aiohttp
import redis

from baton.demo import MODEL_DIR, MODEL_NAME
from baton.processes.child import COMMAND, Child, ChildDiedError, ChildSpec
from baton.processes.embedded_redis import EmbeddedRedis
from core.process.failpoints import VARIABLE as FAILPOINTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

STOP_TIMEOUT_S = 5.0
#: A process that does not serve after this many seconds never will, however busy the machine.
START_TIMEOUT_S = 300.0
#: Between two questions to a process that has no event for us.
POLL_S = 0.02
REDIS = "redis"
Flags = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """How many of each kind, of how many ranks, and with which flags: ``{"num-blocks": 64}``; True is a bare flag."""

    prefill: int = 2
    decode: int = 3
    routers: int = 2
    prefill_tp: int = 1
    decode_tp: int = 1
    worker_flags: Flags = field(default_factory=dict)
    router_flags: Flags = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each process but Redis, by name."""
        counts = {"prefill": self.prefill, "decode": self.decode, "router": self.routers}
        return {f"{kind}-{i}": kind for kind, count in counts.items() for i in range(count)}

    @property
    def tps(self) -> set[int]:
        """The different numbers of ranks."""
        return {self.prefill_tp, self.decode_tp}


@dataclass
class Process:
    """One start of a process. It is ``up`` while clients may count on it."""

    child: Child
    url: str = ""
    internal_url: str = ""
    #: Empty for a router.
    worker_id: str = ""
    up: bool = False
    failpoints: str = ""
    #: Since when it has served, seconds of ``time.monotonic``.
    served_s: float = 0.0
    #: Bytes of the log from earlier starts under the same name.
    log_from: int = 0
    #: Why it has ended, once it has.
    why: str = ""

    @property
    def pid(self) -> int:
        assert self.child.pid is not None
        return self.child.pid

    def has_died_as_armed(self) -> bool:
        """Whether it or a rank of it was killed by its failpoint: its last words are in the log."""
        if not self.failpoints or self.child.log_path is None:
            return False
        last_words = f"failpoint {self.failpoints.partition('=')[0]}: kill"
        return last_words.encode() in self.child.log_path.read_bytes()[self.log_from :]


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

    def abandon(self) -> None:
        """Kill everything and wait for nothing, just before this process ends."""
        for process in self.processes.values():
            process.child.kill()
        self.redis.kill()
        self.redis.stop()

    # --- starting and ending

    async def start(self, name: str, *, failpoints: str = "", num_workers: int = 1) -> None:
        """Start a process that does not run; returns when it serves. A router then knows so many workers.

        Raises ChildDiedError when it ends instead, or does not come to serve.
        """
        child = self.child(name, failpoints)
        await child.start()
        assert child.log_path is not None
        process = Process(child, failpoints=failpoints, log_from=child.log_path.stat().st_size)
        self.processes[name] = process
        watcher = asyncio.create_task(self._watch(name, process), name=f"end of {name}")
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        ready = await in_time(name, child.ready())
        process.url, process.internal_url, process.worker_id = ready.url, ready.internal_url, ready.worker_id
        if self.kinds[name] == "router":
            await in_time(name, self._until_it_knows(process, num_workers))
        if process.why:  # it was ready, and has died since
            raise ChildDiedError(process.why)
        process.up, process.served_s = True, time.monotonic()

    def child(self, name: str, failpoints: str) -> Child:
        """What is run under a name; not started yet."""
        kind = self.kinds[name]
        flags = self._router_flags() if kind == "router" else self._worker_flags(kind)
        verb = "router" if kind == "router" else "worker"
        return start_spec(name, verb, {"redis-url": self.redis.url, **flags}, self.folder, failpoints)

    def _worker_flags(self, role: str) -> Flags:
        own = {
            "role": role,
            "tp": self.shape.prefill_tp if role == "prefill" else self.shape.decode_tp,
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

    def signal(self, name: str, number: signal.Signals) -> bool:
        """To the process itself, without its ranks; False when it does not live."""
        return send(self.redis.pid if name == REDIS else self.processes[name].pid, number)

    def stop(self, name: str) -> None:
        """It stands still until ``go_on``; its ranks do not."""
        self.signal(name, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """After ``stop``; otherwise nothing."""
        self.signal(name, signal.SIGCONT)

    def ranks(self, name: str) -> list[int]:
        """The process ids of a worker's ranks, in their order; none when they are gone."""
        pid = self.processes[name].pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []
        found = {rank: int(child) for child in children if (rank := rank_of(int(child))) is not None}
        return [found[rank] for rank in sorted(found)]

    def restart_redis(self) -> None:
        """It dies and comes back empty, under the same URL."""
        self.redis.kill()
        self.redis.start()

    def empty_redis(self) -> None:
        """It forgets everything."""
        with redis.Redis.from_url(self.redis.url) as client:
            client.flushall()

    # --- looking

    def up(self, kind: str) -> list[str]:
        """The processes of a kind that serve now."""
        return [name for name, process in self.processes.items() if self.kinds[name] == kind and process.up]

    async def state(self, name: str) -> dict[str, Any]:
        """``/internal/state`` of a worker or a router. Raises aiohttp.ClientError, TimeoutError."""
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


async def in_time(name: str, serves: Awaitable[T]) -> T:
    """What is awaited until a process serves. Raises ChildDiedError when that does not come."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            return await serves
    except TimeoutError:
        raise ChildDiedError(f"{name}: does not serve after {START_TIMEOUT_S:g} s") from None


def send(pid: int, number: signal.Signals) -> bool:
    """A signal to a process; False when there is none."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def start_spec(name: str, verb: str, flags: Mapping[str, Any], folder: Path, failpoints: str = "") -> Child:
    """A child that is not started yet, with no settings but these."""
    argv = [*COMMAND, verb]
    for flag, value in flags.items():
        argv += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("BATON_")}
    environ |= {"PYTHONUNBUFFERED": "1"} | ({FAILPOINTS: failpoints} if failpoints else {})
    return Child(ChildSpec(name, tuple(argv), environ), folder / f"{name}.log", lambda *_: None)


def rank_of(pid: int) -> int | None:
    """A rank's number stands in the start parameters on its command line; None when this is none, or not any more."""
    try:
        spec = json.loads(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2])
    except (OSError, IndexError, ValueError):
        return None
    rank = spec.get("rank", 0) if isinstance(spec, dict) else None
    return rank if isinstance(rank, int) else None
