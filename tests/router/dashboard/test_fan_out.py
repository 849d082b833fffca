"""The dashboard of one router shows all of them: what is added, what is put in order, and who does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest_asyncio
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.router import RouterRecord
from baton_serve.router.dashboard.history import STEP_S, HistogramCounts, History, Step, Totals, quantile, summary
from baton_serve.router.dashboard.live import LiveSnapshots
from baton_serve.router.dashboard.merged_history import MergedHistory, position
from baton_serve.router.dashboard.schema import Snapshot
from baton_serve.router.dashboard.share import MAX_LISTED
from baton_serve.router.peers.port import PeerAnswer, PeerRouters
from tests.kits.router.cluster import Cluster, chat, make_settings
from tests.kits.router.stub_workers import Hang

BOUNDS = {"t": (0.1, 1.0, 10.0)}
buckets = st.lists(st.integers(0, 50), min_size=4, max_size=4).map(tuple)


class Neighbours(PeerRouters):
    """``PeerRouters`` whose others answer from an application, or with an error."""

    def __init__(self, router_id: str) -> None:
        super().__init__(RouterRecord(router_id=router_id, url="", internal_url=""))
        self.apps: dict[str, FastAPI | str] = {}
        self.asked: list[str] = []
        self.answered = asyncio.Event()

    def __iter__(self) -> Iterator[RouterRecord]:
        return iter(
            [
                RouterRecord(router_id=name, url=f"http://{name}", internal_url=f"http://{name}.internal", group="")
                for name in sorted(self.apps)
            ]
        )

    async def gather(self, method: str, path: str, body: bytes = b"") -> list[PeerAnswer]:
        self.asked.append(path)
        answers = [await self._answer(name, app, method, path) for name, app in sorted(self.apps.items())]
        self.answered.set()
        return answers

    @staticmethod
    async def _answer(name: str, app: FastAPI | str, method: str, path: str) -> PeerAnswer:
        if isinstance(app, str):
            return PeerAnswer(name, error=app)
        async with AsyncClient(transport=ASGITransport(app), base_url="http://x") as client:
            answer = await client.request(method, path)
            return PeerAnswer(name, answer.status_code, answer.content)


@pytest_asyncio.fixture
async def other() -> AsyncIterator[Cluster]:
    made = Cluster(make_settings())
    await made.start()
    yield made
    await made.close()


def with_neighbours(cluster: Cluster) -> tuple[LiveSnapshots, Neighbours]:
    peers = Neighbours(cluster.router_id)
    cluster.peers = peers
    return cluster.snapshots(), peers


async def seen(board: LiveSnapshots, peers: Neighbours) -> Snapshot:
    """What is shown once the others have been asked."""
    board.newest()
    await peers.answered.wait()
    await asyncio.sleep(0)  # whoever waited for the answers takes them over
    return board.take(0.0)


async def fill(cluster: Cluster, num: int) -> None:
    await cluster.add("decode")
    p = await cluster.add("prefill", limit=1)
    p.script += [Hang(), Hang()]
    for _ in range(num):
        await cluster.open(chat())
    await cluster.until_state("queued", num - 2)


async def test_counts_and_queues_add_and_requests_are_in_order_of_age(cluster: Cluster, other: Cluster) -> None:
    board, peers = with_neighbours(cluster)
    peers.apps[other.router_id] = other.internal()
    await fill(other, MAX_LISTED)
    await asyncio.sleep(0.3)  # the ages of the others are of a moment before ours
    await fill(cluster, 5)
    shown = await seen(board, peers)
    assert (shown.counts["queued"], shown.counts["prefilling"]) == (MAX_LISTED + 1, 4)
    assert shown.queues.prefill.length == MAX_LISTED + 1
    assert (len(shown.requests), shown.num_hidden) == (MAX_LISTED, 5)
    ages = [request.age_ms for request in shown.requests]
    assert ages == sorted(ages, reverse=True)
    newest = [request.router for request in shown.requests[MAX_LISTED // 2 :]]
    assert newest.count(cluster.router_id) == 5, "all of them came last"
    assert shown.requests[0].router == other.router_id
    assert [(r.id, r.is_this, r.num_requests) for r in shown.routers] == [
        (cluster.router_id, True, 5),
        (other.router_id, False, MAX_LISTED),
    ]


async def test_a_worker_of_several_routers_is_shown_once(cluster: Cluster, other: Cluster) -> None:
    board, peers = with_neighbours(cluster)
    peers.apps[other.router_id] = other.internal()
    for one in (cluster, other):
        await one.add("prefill")
    next(iter(other.pool)).standing.left_out = True
    (worker,) = (await seen(board, peers)).workers
    assert (worker.id, worker.draining) == ("p0", True)


async def test_a_router_that_does_not_answer_is_named(cluster: Cluster) -> None:
    board, peers = with_neighbours(cluster)
    peers.apps = {"aaaaaaaaaaaa": "no answer in 2 s", "bbbbbbbbbbbb": FastAPI()}
    shown = await seen(board, peers)
    assert [(router.error, router.num_requests) for router in shown.routers[1:]] == [
        ("no answer in 2 s", None),
        ("HTTP 404", None),
    ]


async def test_other_routers_are_asked_only_for_a_reader_and_for_all_steps_only_once(
    cluster: Cluster, other: Cluster
) -> None:
    board, peers = with_neighbours(cluster)
    peers.apps[other.router_id] = other.internal()
    board.take(0.0)
    assert peers.asked == []
    for num_steps in (300, 4):
        peers.answered.clear()
        board._made_s = float("-inf")
        await seen(board, peers)
        assert peers.asked[-1] == f"/internal/live?num_steps={num_steps}"


def history_of(counts: tuple[int, ...], num_empty: int = 0) -> History:
    """So many empty steps, and one with those counts."""
    none = Totals(0, 0, 0, {"t": HistogramCounts((0, 0, 0, 0))}, {"held": 1})
    history = History(0.0, none, BOUNDS)
    for number in range(num_empty):
        history.sample((number + 1) * STEP_S, none)
    totals = Totals(sum(counts), 0, 0, {"t": HistogramCounts(counts, float(sum(counts)))}, {"held": 2})
    history.sample((num_empty + 1) * STEP_S, totals)
    return history


@given(buckets, buckets, st.integers(0, 3))
def test_quantiles_are_those_of_all_values(mine: tuple[int, ...], theirs: tuple[int, ...], num_more: int) -> None:
    own, far = history_of(mine), history_of(theirs, num_more)
    steps = list(far)
    told = msgspec.json.decode(msgspec.json.encode(steps), type=list[Step])
    merged = MergedHistory()
    merged.take("far", told, position(far.num_steps, 0.3), position(own.num_steps, 0.4))
    (step,) = merged.together(own)
    both = HistogramCounts(tuple(a + b for a, b in zip(mine, theirs, strict=True)))
    assert summary(step.times["t"], BOUNDS["t"]).p95_s == quantile(both, BOUNDS["t"], 0.95)
    assert step.ended_per_s * STEP_S == both.total
    assert step.live == {"held": 4}


def test_errors_are_added_by_status_and_a_neighbours_version_may_not_tell_them() -> None:
    mine = Step(0, 2, 0, {}, {}, 3, {"400": 1.0, "502": 1.0}, {"429": 3.0})
    theirs = Step(0, 1, 0, {}, {}, 1, {"502": 1.0}, {"401": 1.0})
    both = mine.plus(theirs)
    assert (both.failed_by_status, both.refused_by_status) == ({"400": 1.0, "502": 2.0}, {"429": 3.0, "401": 1.0})
    old = {"ended_per_s": 0, "failed_per_s": 1, "chunks_per_s": 0, "live": {}, "times": {}, "refused_per_s": 1}
    assert mine.plus(msgspec.convert(old, Step)).failed_by_status == mine.failed_by_status


def test_a_step_keeps_its_place_while_phases_differ() -> None:
    """Its newest step ends 1.4 s after ours: told before and after our next one, it stays where it was."""
    far, own, merged = history_of((8, 0, 0, 0)), history_of((1, 0, 0, 0)), MergedHistory()
    steps = list(far)
    merged.take("far", steps, position(1, 0.1), position(1, 1.5))
    before = [step.ended_per_s for step in merged.together(own)]
    merged.take("far", steps, position(1, 0.9), position(2, 0.3))
    assert [step.ended_per_s for step in merged.together(own)] == before


def test_steps_that_are_older_than_the_history_are_forgotten() -> None:
    merged, own = (
        MergedHistory(),
        History(0.0, Totals(0, 0, 0, {"t": HistogramCounts((0,) * 4)}, {}), BOUNDS, num_steps=2),
    )
    steps = list(history_of((1, 1, 1, 1)))
    for number in range(1, 20):
        own.sample(number * STEP_S, own._last)
        merged.take("far", steps, position(number, 0), position(number, 0))
        merged.together(own)
    assert len(merged._told) <= 2 and len(merged._made) <= 2
