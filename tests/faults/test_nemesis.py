"""A storm must not be weaker than it looks: what hits nothing is not counted, and nobody who dies, hangs or stays away
goes unnoticed. With real processes that do nothing.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from baton_serve.baton.cluster.cluster import POLL_S, REDIS, Cluster
from baton_serve.baton.cluster.process import Process, ProcessSpec, rank_of
from baton_serve.baton.processes.child import Child, ChildDiedError, ChildSpec
from baton_serve.baton.torture.faults.nemesis import Nemesis
from baton_serve.baton.torture.faults.schedule import FREQUENCIES, LOOKAHEAD, Schedule
from baton_serve.baton.torture.shape import Shape

SHAPE = Shape(prefill=1, decode=2, routers=0)
REAL_SLEEP = asyncio.sleep
ARMED = "rank.read.before=kill@1"
LAST_WORDS = "print('failpoint rank.read.before: kill', flush=True); "
READY = """
import os, signal, subprocess, sys, time
def ready():
    os.write(int(sys.argv[-1]), b'{"event":"ready","url":"http://127.0.0.1:9"}\\n')
"""
SERVE = READY + "ready(); time.sleep(600)"
#: A worker with two ranks that does not care whether they live.
CARELESS = (
    READY
    + """
for rank in 0, 1:
    subprocess.Popen([sys.executable, "-SEc", "import time; time.sleep(600)", '{"rank":%d}' % rank])
ready()
time.sleep(600)
"""
)
DIE_BY_SIGNAL = "os.kill(os.getpid(), signal.SIGKILL)"


class ScriptedCluster(Cluster):
    """What each start of a process does, by name. All others serve."""

    def __init__(self, folder: Path, **scripts: list[str]) -> None:
        super().__init__(folder, SHAPE.specs)
        self._scripts = {name.replace("_", "-"): script for name, script in scripts.items()}

    def child(self, name: str, failpoints: str) -> Child:
        scripts = self._scripts.get(name)
        script = scripts.pop(0) if scripts else SERVE
        argv = (sys.executable, "-SEc", script)
        return Child(ChildSpec(name, argv, {}), self.folder / f"{name}.log", lambda *_: None)


@asynccontextmanager
async def hurting(cluster: Cluster) -> AsyncIterator[Nemesis]:
    async with cluster, aclosing(Nemesis(cluster, 1, failpoint_share=0)) as nemesis:
        yield nemesis


async def test_what_is_killed_comes_back_and_surprises_nobody(tmp_path: Path) -> None:
    async with hurting(ScriptedCluster(tmp_path)) as nemesis:
        nemesis.hurt("kill", "decode-0")
        assert nemesis.num_kills == 1 and nemesis.victims("decode") == []
        await nemesis.heal()
        assert nemesis.surprises == [] and sorted(nemesis.victims("decode")) == ["decode-0", "decode-1"]


async def test_a_kill_that_hits_nothing_is_not_counted(tmp_path: Path) -> None:
    async with hurting(ScriptedCluster(tmp_path)) as nemesis:
        nemesis.hurt("rank", "decode-0")
        assert nemesis.faults == [] and nemesis.num_kills == 0 and "decode-0" in nemesis.victims("decode")


async def test_any_rank_may_be_killed(tmp_path: Path) -> None:
    cluster = ScriptedCluster(tmp_path, decode_0=[CARELESS])
    async with hurting(cluster) as nemesis:
        assert [rank_of(pid) for pid in cluster.ranks("decode-0")] == [0, 1]
        nemesis.hurt("rank", "decode-0")
        (fault,) = nemesis.faults
        killed = int(fault.detail.split()[1])
        while len(left := cluster.ranks("decode-0")) == 2:  # noqa: ASYNC110 (the system tells nobody)
            await asyncio.sleep(POLL_S)
        assert [rank_of(pid) for pid in left] == [1 - killed]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("failpoints", "end", "told"),
    [
        ("", DIE_BY_SIGNAL, "decode-0: was ended by SIGKILL"),
        (ARMED, "sys.exit(1)", "decode-0: ended with exit code 1"),
        (ARMED, DIE_BY_SIGNAL, "decode-0: was ended by SIGKILL"),
        (ARMED, LAST_WORDS + DIE_BY_SIGNAL, ""),
    ],
)
async def test_who_dies_without_our_doing_is_told(tmp_path: Path, failpoints: str, end: str, told: str) -> None:
    signed = tmp_path / "end now"
    waits = f"while not os.path.exists({str(signed)!r}): time.sleep(0.01)\n"
    async with hurting(ScriptedCluster(tmp_path, decode_0=[SERVE, READY + "ready()\n" + waits + end])) as nemesis:
        await nemesis.arm("decode-0", failpoints)
        signed.touch()
        await nemesis.died("decode-0")
        await nemesis.heal()
        assert nemesis.surprises == ([told] if told else [])


async def test_one_that_was_ready_and_died_before_anybody_looked_does_not_serve(tmp_path: Path) -> None:
    cluster = ScriptedCluster(tmp_path, decode_0=[SERVE, READY + "ready(); " + DIE_BY_SIGNAL])
    async with hurting(cluster) as nemesis:
        nemesis.hurt("kill", "decode-0")
        while not nemesis.surprises:  # noqa: ASYNC110 (so it will be told)
            await asyncio.sleep(POLL_S)
        await nemesis.heal()
        process = cluster.processes["decode-0"]
        assert process.up == (process.why == "")


async def test_who_does_not_end_when_its_rank_is_killed_is_told(tmp_path: Path) -> None:
    cluster = ScriptedCluster(tmp_path, decode_0=[CARELESS])
    async with hurting(cluster) as nemesis:
        nemesis.heal_s = 0.2
        nemesis.hurt("rank", "decode-0")
        await nemesis.heal()
        (told,) = nemesis.surprises
        assert told.startswith("decode-0: did not end or come back after rank decode-0")


async def test_a_storm_ends_when_somebody_does_not_come_back(tmp_path: Path) -> None:
    async with hurting(ScriptedCluster(tmp_path, decode_0=[SERVE, "raise SystemExit('no')"])) as nemesis:
        nemesis.hurt("kill", "decode-0")
        await nemesis.run(lambda: False, 0.01)
        assert nemesis.surprises == ["while it started: decode-0: ended with exit code 1: no"]


async def test_a_storm_ends_when_nobody_can_be_hurt_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedule, "next", lambda *_: None)
    async with hurting(ScriptedCluster(tmp_path, decode_0=[CARELESS])) as nemesis:
        nemesis.heal_s = 0.2
        nemesis.hurt("rank", "decode-0")
        await nemesis.run(lambda: False, 0.01)
        assert len(nemesis.surprises) == 1


async def test_one_that_never_serves_is_given_up(tmp_path: Path) -> None:
    cluster = ScriptedCluster(tmp_path, decode_0=["import time; time.sleep(600)"])
    cluster.specs = {name: replace(spec, start_timeout_s=0.3) for name, spec in SHAPE.specs.items()}
    with pytest.raises(ChildDiedError, match=r"decode-0: does not serve after 0\.3 s"):
        async with cluster:
            pass


async def test_the_only_one_of_a_kind_is_spared(tmp_path: Path) -> None:
    async with hurting(ScriptedCluster(tmp_path)) as nemesis:
        assert nemesis.spared == ["prefill-0"] and nemesis.victims("prefill") == []


def test_a_deck_plays_all_of_its_cards_and_none_of_who_is_spared() -> None:
    schedule = Schedule(random.Random(1), {"decode", REDIS})
    wanted = {item: count for item, count in FREQUENCIES.items() if item[1] in {"decode", REDIS}}
    done = Counter(schedule.next(lambda _: True) for _ in range(2 * sum(wanted.values())))
    assert done == {item: 2 * count for item, count in wanted.items()}


def test_what_cannot_be_done_now_waits_in_the_hand_and_nothing_else_takes_its_place_for_ever() -> None:
    num_done = 0
    for seed in range(20):
        schedule = Schedule(random.Random(seed), {"decode", "router", REDIS})
        while schedule.next(lambda kind: kind == REDIS) is not None:
            num_done += 1
        assert all(schedule.next(lambda kind: kind != REDIS) is not None for _ in range(LOOKAHEAD))
    assert num_done > 0


class PaperCluster:
    """Processes in name only, six of a kind, each of which is back after a time of its own."""

    def __init__(self, restart_seed: int) -> None:
        self.kinds = {f"{kind}-{number}": kind for kind in ("prefill", "decode", "router") for number in range(6)}
        self.specs = {name: ProcessSpec(kind) for name, kind in self.kinds.items()}
        self.processes = {name: self._process(name, "") for name in self.kinds}
        self.on_end: Any = None
        self.back: list[str] = []
        self._rng = random.Random(restart_seed)

    def _process(self, name: str, failpoints: str) -> Process:
        return Process(Child(ChildSpec(name, (), {}), None, lambda *_: None), up=True, failpoints=failpoints)

    def up(self, kind: str) -> list[str]:
        return [name for name, process in self.processes.items() if self.kinds[name] == kind and process.up]

    def ranks(self, name: str) -> list[int]:
        return []

    def kill(self, name: str) -> bool:
        asyncio.get_running_loop().call_soon(self.on_end, name, f"{name}: was ended by SIGKILL")
        return True

    async def ended(self, name: str) -> None:
        await turns(self._rng.randrange(60))

    async def start(self, name: str, *, failpoints: str = "") -> None:
        self.processes[name] = self._process(name, failpoints)
        self.back.append(name)

    def stop(self, name: str) -> None: ...

    def go_on(self, name: str) -> None: ...

    def restart_redis(self) -> None: ...

    def empty_redis(self) -> None: ...


async def turns(count: int) -> None:
    """So many of the event loop."""
    for _ in range(count):
        await REAL_SLEEP(0)


async def what_was_drawn(
    seed: int, restart_seed: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[tuple[str, str]], list[float], list[str]]:
    """What was done to which kind, how long each pause and stop was, and who came back in which order."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await turns(0 if seconds > 2 else 20)  # no stop lasts until the next card

    monkeypatch.setattr("baton_serve.baton.torture.faults.nemesis.STOP_S", (3.0, 5.0))
    monkeypatch.setattr(asyncio, "sleep", sleep)
    cluster = PaperCluster(restart_seed)
    async with aclosing(Nemesis(cast("Cluster", cluster), seed)) as nemesis:
        await nemesis.run(lambda: len(nemesis.faults) >= 150, 1.0)
        await nemesis.heal()
        return [(fault.what, fault.kind) for fault in nemesis.faults], slept, cluster.back


async def test_the_same_seed_does_the_same_whatever_restarts_take(monkeypatch: pytest.MonkeyPatch) -> None:
    done, slept, back = await what_was_drawn(7, 1, monkeypatch)
    again, slept_again, back_again = await what_was_drawn(7, 2, monkeypatch)
    assert (again, slept_again) == (done, slept)
    assert back_again != back and len(set(slept)) == len(slept) - done.count(("stop", REDIS)) + 1
    other, other_slept, _ = await what_was_drawn(8, 1, monkeypatch)
    assert other != done and other_slept != slept
