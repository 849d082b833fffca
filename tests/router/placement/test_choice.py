"""A choice among many workers is the one that looking at all of them would make, and costs no more among more."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_serve.core.protocol.worker import Role, WorkerLoad, WorkerStatus
from baton_serve.router.placement import PREFILL_POLICIES, Ahead, Prompt, available, choose, with_room
from baton_serve.router.placement.policies.prefix import Prefix
from baton_serve.router.placement.policies.round_robin import RoundRobin
from baton_serve.router.pool import LOAD_TTL_S, Candidates, Reservation, Worker, WorkerPool
from baton_serve.router.pool import candidates as candidates_module
from baton_serve.router.pool.usage import Usage
from tests.kits.registry import worker as registered
from tests.kits.router.placement import prompt, worker

NAMES = [f"w{number}" for number in range(6)]
#: Prompts of one to five chunks, some of which begin alike, by more or less than what counts as a match.
TEXTS = [begin * 512 + more for begin in (b"a", b"b") for more in (b"", b"c" * 512, b"c" * 2048, b"d" * 512)]
RANKED = [name for name, make in PREFILL_POLICIES.items() if hasattr(make([]), "pick_ranked")]
SOME = st.sets(st.sampled_from(NAMES), max_size=3)
LOADS = st.builds(
    WorkerLoad,
    running=st.integers(0, 4),
    leased_blocks=st.sampled_from([0, 0, 3]),
    draining=st.sampled_from([False, False, False, True]),
)


def status(name: str, load: WorkerLoad, engine: str) -> WorkerStatus:
    more = {"model": "m", "num_blocks": 100, "max_num_seqs": 1 + NAMES.index(name) % 3}
    return registered(name, load=load, engine_id=engine, role=Role.DECODE, **more)


class Router:
    """A pool, and twice the same policy: one looks at all workers, the other one at their ranking."""

    def __init__(self, policy: str, data: st.DataObject) -> None:
        self.data = data
        self.now_s = 100.0
        self.pool = WorkerPool(4, clock=lambda: self.now_s, breaker_failures=2)
        self.looks, self.ranks = (PREFILL_POLICIES[policy](self.pool.on_gone) for _ in range(2))
        self.statuses = {name: status(name, WorkerLoad(), f"engine-{name}") for name in NAMES}
        self.places: list[Reservation] = []
        self.pool.apply(self.statuses.values())

    def some_worker(self) -> Worker | None:
        return self.pool.get(self.data.draw(st.sampled_from(NAMES)))

    def choose(self) -> None:
        workers = self.pool.route("m").decode
        assert workers.are_many
        draw = self.data.draw
        excluded = {one for one in workers if one.worker_id in draw(SOME)}
        small, taken = draw(SOME), draw(SOME)
        about = prompt(draw(st.sampled_from(TEXTS)))

        def one_way(policy: Any, among: Candidates) -> tuple[Worker | None, Ahead]:
            ahead = Ahead()
            ahead.workers |= {one for one in among if one.worker_id in taken}
            return choose(policy, among, excluded, lambda one: one.worker_id not in small, ahead, "g", about), ahead

        among = Candidates(workers)
        among.are_many = False
        turns = {one: one.usage.turn for one in workers}
        expected, waits_for = one_way(self.looks, among)
        if expected is not None:  # has taken its turn, and marked no other worker as changed
            expected.usage.turn = turns[expected]
        chosen, ranked_waits_for = one_way(self.ranks, workers)
        assert chosen is expected
        assert (ranked_waits_for.workers, ranked_waits_for.groups) == (waits_for.workers, waits_for.groups)
        assert set(with_room(workers, excluded)) == set(available(workers, excluded))
        if chosen is not None and draw(st.booleans()):
            self.places.append(self.pool.enter(chosen, 1))

    def leave(self) -> None:
        if self.places:
            self.pool.leave(self.places.pop(self.data.draw(st.integers(0, len(self.places) - 1))))

    def report(self) -> None:
        name = self.data.draw(st.sampled_from(NAMES))
        engine = self.data.draw(st.sampled_from([self.statuses[name].record.engine_id] * 4 + ["engine-new"]))
        self.statuses[name] = status(name, self.data.draw(LOADS), engine)
        self.pool.apply(self.statuses.values())

    def reported(self) -> None:
        one = self.some_worker()
        if one is not None:
            full_at = self.data.draw(st.none() | st.integers(0, 3))
            self.pool.reported(one, self.data.draw(LOADS), full_at, one.usage.in_flight)

    def time_passes(self) -> None:
        self.now_s += self.data.draw(st.sampled_from([0.1, LOAD_TTL_S]))
        self.pool.forget_old_loads()

    def happens(self) -> None:
        """Several things happen to one worker, with a choice after each."""
        pool = self.pool
        events = [pool.unreachable, pool.recovered, pool.failed, pool.worked, pool.probe_failed]
        events += [pool.leave_out, pool.take_back, pool.drain_told]
        one = self.some_worker()
        for event in self.data.draw(st.lists(st.sampled_from(events), min_size=1, max_size=5)):
            if one is not None and pool.knows(one):
                event(one)
                self.choose()


@pytest.fixture(scope="module", autouse=True)
def all_are_many() -> Any:
    """Rankings also of a handful of workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates_module, "MANY", 0)
        yield


@pytest.mark.parametrize("policy", RANKED)
@settings(max_examples=50)
@given(data=st.data())
def test_the_ranking_finds_whom_a_look_at_all_finds_whatever_happens(policy: str, data: st.DataObject) -> None:
    async def drive() -> None:
        router = Router(policy, data)
        steps = [router.choose] * 3 + [router.leave, router.report, router.reported, router.time_passes]
        for step in data.draw(st.lists(st.sampled_from([*steps, router.happens, router.happens]), max_size=20)):
            step()
            router.choose()
        assert {len(one.watchers) for one in router.pool} <= {0, 1}, "rankings of earlier routes hear nothing"

    asyncio.run(drive())


def seen(workers: Sequence[Worker], *, ranked: bool) -> tuple[set[Worker], set[Worker], set[Any]]:
    """Who has room, and for whom a request waits that fits nowhere."""
    among, ahead = workers if isinstance(workers, Candidates) and ranked else Candidates(workers), Ahead()
    among.are_many = ranked
    assert choose(RankedFirst(), among, frozenset(), lambda _one: False, ahead, "g", prompt()) is None
    return set(with_room(among, frozenset())), ahead.workers, ahead.groups


@pytest.mark.parametrize(
    ("before", "event"),
    [
        ((), "unreachable"),
        (("unreachable",), "recovered"),
        (("failed",), "failed"),
        (("failed", "failed"), "worked"),
        (("failed", "failed"), "recovered"),
        (("failed", "failed", "recovered"), "failed"),
        ((), "leave_out"),
        (("leave_out",), "take_back"),
        (("draining",), "free"),
        (("free",), "draining"),
        (("free",), "leased"),
        (("free",), "full"),
        (("full",), "too_old"),
        (("one_runs",), "others_wait"),
    ],
)
async def test_the_ranking_hears_of_every_change_of_a_worker(before: tuple[str, ...], event: str) -> None:
    now_s = 100.0
    pool = WorkerPool(4, clock=lambda: now_s, breaker_failures=2)
    pool.apply([status(name, WorkerLoad(), name) for name in NAMES])
    workers, one = pool.route("m").decode, pool.get(NAMES[2])
    assert one is not None
    loads = {
        "free": WorkerLoad(),
        "full": WorkerLoad(running=99),
        "one_runs": WorkerLoad(running=1),
        "leased": WorkerLoad(leased_blocks=1),
        "draining": WorkerLoad(draining=True),
    }
    for what in (*before, event):
        earlier = seen(workers, ranked=True)
        if what in loads:
            one.report(loads[what], now_s)
        elif what == "others_wait":
            pool.reported(one, loads["one_runs"], full_at=1, num_sent=0)
        elif what == "too_old":
            now_s += LOAD_TTL_S
            pool.forget_old_loads()
        else:
            getattr(pool, what)(one)
        assert seen(workers, ranked=True) == seen(workers, ranked=False)
    assert seen(workers, ranked=True) != earlier


async def test_a_worker_is_found_by_the_key_of_its_new_engine() -> None:
    pool = WorkerPool(4)
    pool.apply([status(name, WorkerLoad(), f"engine-{name}") for name in NAMES])
    policy, workers = Prefix(pool.on_gone), pool.route("m").decode

    def chosen() -> Worker | None:
        return choose(policy, workers, frozenset(), bool, Ahead(), "g", prompt(b"x" * 2000))

    one = chosen()
    assert one is not None
    assert chosen() is one
    assert one in with_room(workers, frozenset())  # by now the ranking has nothing left to look at
    pool.engine_started(one, "engine-new")
    other = chosen()
    assert other is not one, "its cache is empty"
    policy.index.forget(other.key if other else "")
    policy.index.note("engine-new", prompt(b"x" * 2000).chunks)
    assert chosen() is one


async def test_a_ranking_ends_with_its_route() -> None:
    pool = WorkerPool(4)
    statuses = [status(name, WorkerLoad(), name) for name in NAMES]
    pool.apply(statuses)
    before = pool.route("m").decode
    choose(RankedFirst(), before, frozenset(), bool, Ahead(), "g", prompt())
    stays = pool.get(NAMES[0])
    assert stays is not None and len(stays.watchers) == 1
    pool.apply(statuses[:-1])
    assert stays.watchers == ()
    assert not before.are_many
    assert len(pool.route("m").decode) == len(statuses) - 1


class RankedFirst:
    """Any policy that asks the ranking."""

    def pick(self, workers: list[Worker], _about: Prompt, /) -> Worker:
        return workers[0]

    def pick_ranked(self, offer: Any, _about: Prompt, /) -> Worker | None:
        return next(iter(offer), None)


def test_a_policy_that_does_not_know_rankings_is_offered_all_that_have_room() -> None:
    full, *others = everybody = [worker(name, in_flight=100 * (name == "w0")) for name in NAMES]
    policy = RoundRobin()
    picks = [choose(policy, Candidates(everybody), frozenset(), bool, Ahead(), "g", prompt()) for _ in range(5)]
    assert picks == others
    assert full not in picks


@pytest.mark.parametrize("name", RANKED)
def test_workers_that_look_alike_all_get_work_from_a_ranking(name: str) -> None:
    policy: Any = PREFILL_POLICIES[name]([])
    workers = Candidates(worker(name) for name in NAMES)
    texts = [b"%02d" % number * 2000 for number in range(30)]
    picks = Counter(choose(policy, workers, frozenset(), bool, Ahead(), "g", prompt(text)) for text in texts)
    assert sorted(picks.values()) == [5] * 6


class Watched(Worker):
    """One that a weak reference can be taken of."""


@pytest.mark.interpreted
def test_nothing_is_kept_of_workers_that_went() -> None:
    policy = Prefix(on_gone := [])
    gone = Watched("b", "http://x", Role.BOTH, Usage(9), engine_id="engine-b")
    workers = Candidates([gone])
    ghost = weakref.ref(gone)
    for text in TEXTS:
        assert choose(policy, workers, frozenset(), bool, Ahead(), "g", prompt(text)) is gone
    assert len(policy.index.holders) > 0
    workers.end()
    for listener in on_gone:
        listener("engine-b")
    del gone, workers
    gc.collect()
    assert ghost() is None
    assert len(policy.index.holders) == len(policy.index) == 0


def num_calls(num_workers: int) -> int:
    """Calls of Python functions for choices in a cluster in use, in which a beginning is on every worker."""
    policy = Prefix([])
    workers = Candidates(worker(f"w{number}", in_flight=number % 7) for number in range(num_workers))
    begin = b"a" * 512
    for one in workers:
        policy.index.note(one.key, prompt(begin).chunks)
    texts = [begin + b"%4d" % number * 128 for number in range(10)]
    calls = 0

    def count(_frame: object, event: str, _about: object) -> None:
        nonlocal calls
        calls += event == "call"

    choose(policy, workers, frozenset(), bool, Ahead(), "g", prompt(begin))
    sys.setprofile(count)
    try:
        for text in texts:
            choose(policy, workers, frozenset(), bool, Ahead(), "g", prompt(text))
    finally:
        sys.setprofile(None)
    return calls


def test_a_choice_among_more_workers_takes_no_more_calls() -> None:
    assert num_calls(400) <= 1.2 * num_calls(20)
