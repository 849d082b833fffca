"""What happens to whom, and when. Everything is drawn from a seed; who is hit also depends on who lives."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import redis

from baton.child import ChildDiedError
from baton.torture.cluster import REDIS
from baton.torture.records import Fault
from protocol.failpoints import FAILPOINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from baton.torture.cluster import Cluster

#: How often each thing happens, of 100. ``rank``: a rank of a worker is killed. ``empty``: Redis forgets everything.
DECK = {
    ("kill", "decode"): 30,
    ("kill", "prefill"): 12,
    ("kill", "router"): 22,
    ("kill", REDIS): 8,
    ("rank", "decode"): 6,
    ("rank", "prefill"): 4,
    ("stop", "decode"): 4,
    ("stop", "prefill"): 3,
    ("stop", "router"): 4,
    ("stop", REDIS): 3,
    ("empty", REDIS): 4,
}
#: Seconds that something stands still. A router of which nothing is heard for about 3.5 s is given up by the others.
STOP_S = (0.3, 5.0)
#: The share of processes that are started again with a failpoint at which they die, and after how many hits at most.
FAILPOINT_SHARE = 0.2
#: Cards from which the next one is taken that can be played: with all of them, what is always possible comes too often.
HAND = 12
MAX_HITS = 12
#: Which failpoints a process of a kind comes by.
PREFIXES = {"prefill": ("worker.",), "decode": ("rank.",), "router": ("router.",)}


class Nemesis:
    """``run`` hurts the cluster until it has killed often enough or long enough; ``heal`` ends it.

    What dies is started again at once. A kind keeps one process that is not touched, unless ``spares_last`` is False.
    """

    def __init__(
        self, cluster: Cluster, seed: int, *, spares_last: bool = True, failpoint_share: float = FAILPOINT_SHARE
    ) -> None:
        self.faults: list[Fault] = []
        #: Processes that ended although nobody had told or armed them to, with the reason.
        self.surprises: list[str] = []
        self._cluster = cluster
        self._rng = random.Random(f"nemesis {seed}")
        self._spares_last = spares_last
        self._failpoint_share = failpoint_share
        self._open: dict[str, Fault] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: set[str] = set()
        #: What is armed at the next starts, by name.
        self._planned: dict[str, list[str]] = {}
        #: Set whenever something has been noted.
        self.news = asyncio.Event()
        self._healing = False
        cluster.on_end = self._on_end

    @property
    def num_kills(self) -> int:
        """SIGKILLs so far."""
        return sum(fault.is_kill for fault in self.faults)

    async def run(self, until: Callable[[], bool], pause_s: float) -> None:
        """Do something every ``pause_s`` seconds on average until the answer is yes."""
        deck: list[tuple[str, str]] = []
        while not until():
            await asyncio.sleep(self._rng.uniform(0.5, 1.5) * pause_s)
            deck = deck or self._shuffled()
            possible = next((card for card in deck[:HAND] if self.victims(card[1])), None)
            if possible is not None:
                deck.remove(possible)
                self.hurt(possible[0], self._rng.choice(self.victims(possible[1])))

    def _shuffled(self) -> list[tuple[str, str]]:
        deck = [card for card, count in DECK.items() for _ in range(count)]
        self._rng.shuffle(deck)
        return deck

    def victims(self, kind: str) -> list[str]:
        """Who of a kind may be hurt now."""
        if kind == REDIS:
            return [] if REDIS in self._open else [REDIS]
        able = [name for name in self._cluster.up(kind) if name not in self._open]
        # One that is armed may die at any time: it is not the one that is left.
        sure = [name for name in able if not self._cluster.processes[name].failpoints]
        return able if not self._spares_last else [name for name in able if set(sure) - {name}]

    def hurt(self, what: str, name: str, stop_s: float | None = None) -> Fault:
        """Do it now; it is undone by itself."""
        kind = REDIS if name == REDIS else self._cluster.kinds[name]
        fault = Fault(what, kind, name, time.monotonic())
        self.faults.append(fault)
        if name == REDIS:
            self._hurt_redis(fault, stop_s)
        elif what == "stop":
            self._begin(fault, self._stand_still(fault, stop_s))
        else:
            self._open[name] = fault  # until it is started again, see _on_end
            self._cluster.processes[name].up = False
            if what == "rank":
                self._cluster.kill_rank(name)
            else:
                self._cluster.signal(name, signal.SIGKILL)
        return fault

    def _hurt_redis(self, fault: Fault, stop_s: float | None) -> None:
        if fault.what == "stop":
            self._begin(fault, self._stand_still(fault, 5.0 if stop_s is None else stop_s))
            return
        if fault.what == "kill":
            self._cluster.restart_redis()
        else:
            with redis.Redis.from_url(self._cluster.redis.url) as client:
                client.flushall()
        fault.ended_s = time.monotonic()

    def _begin(self, fault: Fault, work: object) -> None:
        self._open[fault.name] = fault
        self._spawn(work)

    def _spawn(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stand_still(self, fault: Fault, seconds: float | None) -> None:
        seconds = self._rng.uniform(*STOP_S) if seconds is None else seconds
        fault.detail = f"{seconds:.1f} s"
        self._cluster.stop(fault.name)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._cluster.go_on(fault.name)
            self._end(fault)

    def _end(self, fault: Fault) -> None:
        fault.ended_s = time.monotonic()
        if self._open.get(fault.name) is fault:
            del self._open[fault.name]
        self.news.set()

    def _on_end(self, name: str, why: str) -> None:
        """A process has ended: by us, at a failpoint, or for a reason that is a bug."""
        if name in self._starting:
            return  # who starts it hears of it
        process = self._cluster.processes[name]
        fault = self._open.get(name)
        if fault is None or not fault.is_kill:
            fault = Fault("failpoint", self._cluster.kinds[name], name, time.monotonic(), detail=process.failpoints)
            self.faults.append(fault)
            if not process.failpoints:
                self.surprises.append(why)
            self._open[name] = fault
        self.news.set()
        self._starting.add(name)
        self._spawn(self._start_again(fault))

    async def _start_again(self, fault: Fault) -> None:
        try:
            while not await self._start(fault.name, fault.kind):
                pass
        except ChildDiedError as error:
            self.surprises.append(f"while it started: {error}")
        finally:
            self._starting.discard(fault.name)
            self._end(fault)

    async def _start(self, name: str, kind: str) -> bool:
        """False when it died at a failpoint before it served. Raises ChildDiedError when it died of something else."""
        await self._cluster.ended(name)
        failpoints = self._planned[name].pop(0) if self._planned.get(name) else self._draw_failpoints(name, kind)
        try:
            await self._cluster.start(name, failpoints=failpoints)
        except ChildDiedError:
            if not failpoints:
                raise
            return False
        return True

    def _draw_failpoints(self, name: str, kind: str) -> str:
        """For one process of a kind at most: if two died by themselves, none might be left."""
        names = [failpoint for failpoint in FAILPOINTS if failpoint.startswith(PREFIXES[kind])]
        peers = [peer for peer, its in self._cluster.kinds.items() if its == kind and peer != name]
        taken = any(self._cluster.processes[peer].failpoints for peer in peers)
        if self._healing or taken or self._rng.random() >= self._failpoint_share:
            return ""
        return f"{self._rng.choice(names)}=kill@{self._rng.randint(1, MAX_HITS)}"

    async def arm(self, name: str, failpoints: str, then: str = "") -> None:
        """Kill a process, and start it again with these failpoints; returns when it serves. ``then``: at the start
        that follows."""
        self._planned[name] = [failpoints, then]
        self.hurt("kill", name)
        await self.calm()

    async def calm(self) -> None:
        """Wait until nothing is broken any more."""
        await self._until(lambda: not self._open)

    async def died(self, name: str) -> None:
        """Wait until a process has died at a failpoint."""
        await self._until(lambda: any(fault.what == "failpoint" and fault.name == name for fault in self.faults))

    async def _until(self, check: Callable[[], bool]) -> None:
        while not check():
            self.news.clear()
            await self.news.wait()

    async def heal(self) -> None:
        """Nothing new happens; returns when everything runs again."""
        self._healing = True
        for name in [*self._cluster.processes, REDIS]:
            self._cluster.go_on(name)
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def aclose(self) -> None:
        """End what is still going on, whatever state that leaves the cluster in."""
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError, ChildDiedError):
                await task


def by_kind(faults: Iterable[Fault]) -> dict[str, int]:
    """How often each thing was done."""
    counts: dict[str, int] = {}
    for fault in faults:
        key = f"{fault.what} {fault.kind}"
        counts[key] = counts.get(key, 0) + 1
    return dict(sorted(counts.items()))
