"""Which fault is injected into which process, and when.

Each purpose draws from a generator of its own, so that the same seed gives the same schedule, the same pauses and
lengths of stops, and the same failpoint for each start of a process. The rest depends on which processes live: a due
fault is put off while its kind has no possible victim, the victim is one of the possible ones, and no process is armed
while another one of its kind is armed.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from baton_serve.baton.cluster.cluster import REDIS
from baton_serve.baton.cluster.process import send
from baton_serve.baton.processes.child import ChildDiedError
from baton_serve.baton.torture.faults.schedule import FREQUENCIES, Schedule
from baton_serve.baton.torture.records import Fault
from baton_serve.core.process.failpoints import FAILPOINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from baton_serve.baton.cluster.cluster import Cluster

#: Seconds that a process is paused. Routers take a process for dead that has been silent for about 3.5 s.
STOP_S = (0.3, 5.0)
#: The share of processes that are started again with a failpoint at which they die, and after how many hits at most.
FAILPOINT_SHARE = 0.2
MAX_HITS = 8
#: For this many seconds an armed process gets no other fault, so that it reaches its failpoint.
ARMED_S = 10.0
#: Seconds by which ``heal_s`` is longer than a start may take.
HEAL_MARGIN_S = 60.0
#: Beginnings of the names of those failpoints that a process of a kind reaches.
PREFIXES = {"prefill": ("worker.",), "decode": ("rank.",), "router": ("router.",)}


class Nemesis:
    """``run`` injects faults until there were enough kills or enough time has passed; ``heal`` ends the faults.

    What dies is started again at once. One process of each kind is always spared.
    """

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        frequencies: Mapping[tuple[str, str], int] = MappingProxyType(FREQUENCIES),
        *,
        failpoint_share: float = FAILPOINT_SHARE,
    ) -> None:
        self.faults: list[Fault] = []
        #: Why something is wrong with a process, one line each: it ended although it was neither killed nor armed, it
        #: did not end although it should have, or it did not come back.
        self.surprises: list[str] = []
        self._cluster = cluster
        self._seed = seed
        self._frequencies = frequencies
        self._rngs: dict[str, random.Random] = {}
        self._failpoint_share = failpoint_share
        self._open: dict[str, Fault] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: set[str] = set()
        #: Processes that will not serve again.
        self._lost: set[str] = set()
        #: The failpoints of the next starts, by the process's name.
        self._planned: dict[str, list[str]] = {}
        #: Set whenever a fault or an end has been noted.
        self.news = asyncio.Event()
        self._healing = False
        #: Longest time, in seconds, until everything that was killed serves again; also the longest time without a
        #: possible victim.
        self.heal_s = max(spec.start_timeout_s for spec in cluster.specs.values()) + HEAL_MARGIN_S
        cluster.on_end = self._on_end

    def _rng(self, purpose: str) -> random.Random:
        """The generator of one purpose. Its draws do not depend on how often other purposes draw."""
        return self._rngs.setdefault(purpose, random.Random(f"nemesis {self._seed} {purpose}"))

    @property
    def num_kills(self) -> int:
        """The number of SIGKILLs so far."""
        return sum(fault.is_kill for fault in self.faults)

    @property
    def spared(self) -> list[str]:
        """The processes that get no fault, because each is the only one of its kind."""
        kinds = list(self._cluster.kinds.values())
        return [name for name, kind in self._cluster.kinds.items() if kinds.count(kind) == 1]

    async def run(self, until: Callable[[], bool], pause_s: float) -> None:
        """Inject a fault every ``pause_s`` seconds on average, until ``until`` returns True or a process is lost."""
        kinds = {kind for name, kind in self._cluster.kinds.items() if name not in self.spared}
        schedule = Schedule(self._rng("cards"), {REDIS, *kinds}, self._frequencies)
        done_s = time.monotonic()
        while not until() and not self._lost:
            await asyncio.sleep(self._rng("pauses").uniform(0.5, 1.5) * pause_s)
            due = schedule.next(lambda kind: bool(self.victims(kind)))
            if due is not None:
                done_s = time.monotonic()
                self.hurt(due[0], self._rng("victims").choice(self.victims(due[1])))
            elif time.monotonic() - done_s > self.heal_s:
                self._give_up()

    def _give_up(self) -> None:
        """Count every process that is still down as lost."""
        self._lost |= self._open.keys()
        self.surprises += [f"{name}: did not end or come back after {fault}" for name, fault in self._open.items()]
        self._open.clear()

    def victims(self, kind: str) -> list[str]:
        """The processes of a kind that may get a fault now."""
        if kind == REDIS:
            return [] if REDIS in self._open else [REDIS]
        able = [name for name in self._cluster.up(kind) if name not in self._open and not self._is_due(name)]
        # One process has to be left that will not die meanwhile; an armed one may die at any time.
        sure = [name for name in able if not self._cluster.processes[name].failpoints]
        return [name for name in able if set(sure) - {name}]

    def _is_due(self, name: str) -> bool:
        """Whether the process is armed and has not yet had ``ARMED_S`` to reach its failpoint."""
        process = self._cluster.processes[name]
        return bool(process.failpoints) and time.monotonic() - process.served_s < ARMED_S

    def hurt(self, what: str, name: str) -> None:
        """Inflict the fault ``what`` on ``name`` now.

        A killed process is started again and a stopped one continues without another call. If the process has just died
        of something else, nothing is done or noted.
        """
        kind = REDIS if name == REDIS else self._cluster.kinds[name]
        fault = Fault(what, kind, name, time.monotonic(), worker_id=self._worker_id(name))
        if what == "stop":
            self._begin(fault, self._stand_still(fault))
        elif name == REDIS:
            self._hurt_redis(fault)
        elif self._kill(fault):
            self._open[name] = fault  # until _on_end has started it again
            self._cluster.processes[name].up = False
        else:
            return
        self.faults.append(fault)

    def _worker_id(self, name: str) -> str:
        return "" if name == REDIS else self._cluster.processes[name].worker_id

    def _hurt_redis(self, fault: Fault) -> None:
        if fault.what == "kill":
            self._cluster.restart_redis()
        else:
            self._cluster.empty_redis()
        fault.ended_s = time.monotonic()

    def _kill(self, fault: Fault) -> bool:
        """Kill what the fault names. Returns False when that process has ended already."""
        if fault.what != "rank":
            return self._cluster.kill(fault.name)
        ranks = self._cluster.ranks(fault.name)
        if not ranks:
            return False
        rank = self._rng("ranks").randrange(len(ranks))
        fault.detail = f"rank {rank} of {len(ranks)}"
        return send(ranks[rank], signal.SIGKILL)

    def _begin(self, fault: Fault, work: object) -> None:
        self._open[fault.name] = fault
        self._spawn(work)

    def _spawn(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stand_still(self, fault: Fault) -> None:
        seconds = STOP_S[1] if fault.name == REDIS else self._rng("stops").uniform(*STOP_S)
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
        """A process has ended: killed, at a failpoint, or because of a bug."""
        if name in self._starting or name in self._lost:
            return  # the call that starts it raises ChildDiedError
        process = self._cluster.processes[name]
        fault = self._open.get(name)
        if fault is None or not fault.is_kill:
            self._open[name] = fault = self._note_failpoint(name)
        # A worker whose rank was killed ends by itself, and words the reason itself: any reason is right.
        if not (process.has_died_as_armed() or fault.what == "rank" or (fault.what == "kill" and "SIGKILL" in why)):
            self.surprises.append(why)
        self.news.set()
        self._starting.add(name)
        self._spawn(self._start_again(fault))

    def _note_failpoint(self, name: str) -> Fault:
        detail = self._cluster.processes[name].failpoints
        kind, worker_id = self._cluster.kinds[name], self._worker_id(name)
        fault = Fault("failpoint", kind, name, time.monotonic(), detail=detail, worker_id=worker_id)
        self.faults.append(fault)
        return fault

    async def _start_again(self, fault: Fault) -> None:
        try:
            while not await self._start(fault.name, fault.kind):
                pass
        except ChildDiedError as error:
            self.surprises.append(f"while it started: {error}")
            self._lost.add(fault.name)
        finally:
            self._starting.discard(fault.name)
            self._end(fault)

    async def _start(self, name: str, kind: str) -> bool:
        """Start a process again. Returns False when it died at a failpoint before it served. Raises ChildDiedError when
        it died of something else.
        """
        await self._cluster.ended(name)
        failpoints = self._planned[name].pop(0) if self._planned.get(name) else self._draw_failpoints(name, kind)
        try:
            await self._cluster.start(name, failpoints=failpoints)
        except ChildDiedError:
            if not self._cluster.processes[name].has_died_as_armed():
                raise
            fault = self._note_failpoint(name)
            fault.ended_s = fault.began_s
            return False
        return True

    def _draw_failpoints(self, name: str, kind: str) -> str:
        """The failpoint of a start, or none.

        At most one process of a kind is armed: if two died, none might be left.
        """
        if not self._cluster.specs[name].has_failpoints:
            return ""
        names = [failpoint for failpoint in FAILPOINTS if failpoint.startswith(PREFIXES[kind])]
        peers = [peer for peer, its in self._cluster.kinds.items() if its == kind and peer != name]
        taken = any(self._cluster.processes[peer].failpoints for peer in peers)
        rng = self._rng(f"failpoints {name}")
        drawn, failpoint, hits = rng.random(), rng.choice(names), rng.randint(1, MAX_HITS)
        return "" if self._healing or taken or drawn >= self._failpoint_share else f"{failpoint}=kill@{hits}"

    async def arm(self, name: str, failpoints: str, then: str = "") -> None:
        """Kill a process and start it again with these failpoints; returns when it serves.

        ``then`` are the failpoints of the start after that.
        """
        self._planned[name] = [failpoints, then]
        self.hurt("kill", name)
        await self.calm()

    async def calm(self) -> None:
        """Wait until no fault is open: every victim serves again."""
        await self._until(lambda: not self._open)

    async def died(self, name: str) -> None:
        """Wait until a process has died at a failpoint."""
        await self._until(lambda: any(fault.what == "failpoint" and fault.name == name for fault in self.faults))

    async def _until(self, check: Callable[[], bool]) -> None:
        while not check():
            self.news.clear()
            await self.news.wait()

    async def heal(self) -> None:
        """Inject no more faults; returns when every process that is not lost runs again."""
        self._healing = True
        for name in [*self._cluster.processes, REDIS]:
            self._cluster.go_on(name)
        try:
            async with asyncio.timeout(self.heal_s):
                await self.calm()
        except TimeoutError:
            self._give_up()
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def disarm(self) -> None:
        """Start every armed process again without failpoints; call it after ``heal``."""
        for name, process in list(self._cluster.processes.items()):
            if process.failpoints:
                self.hurt("kill", name)
        await self.heal()

    async def aclose(self) -> None:
        """Cancel what is still under way, whatever state that leaves the cluster in."""
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError, ChildDiedError):
                await task


def by_kind(faults: Iterable[Fault]) -> dict[str, int]:
    """The number of faults by fault and kind, such as "kill decode"."""
    counts: dict[str, int] = {}
    for fault in faults:
        key = f"{fault.what} {fault.kind}"
        counts[key] = counts.get(key, 0) + 1
    return dict(sorted(counts.items()))
