"""Workers that can be reached but fail: the table, and what requests see of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.worker import Role
from baton_serve.router.placement import available
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.pool import breaker as breakers
from baton_serve.router.pool.breaker import FIRST_PAUSE_S, MAX_PAUSE_S, TABLE, Breaker, BreakerEvent, BreakerState
from baton_serve.router.pool.standing import Standing
from baton_serve.router.settings import RouterSettings
from tests.kits.router.cluster import Cluster, chat, eventually, make_settings
from tests.kits.router.stub_workers import Refuse, Reset, StreamThen
from tests.kits.router.workers import new_worker

OPEN, HALF_OPEN, CLOSED = BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED
BROKEN = Refuse(500, {"error": {"message": "broken", "type": "server_error", "code": "oops"}})


def opened(now_s: float = 0.0) -> Breaker:
    breaker = Breaker(1)
    assert breaker.failed(now_s)
    return breaker


def test_failures_in_a_row_open_a_breaker() -> None:
    breaker = Breaker(3)
    breaker.failed(0.0)
    breaker.failed(0.0)
    assert not breaker.succeeded(), "it was closed all the time"
    assert [breaker.failed(0.0) for _ in range(4)] == [False, False, True, False]
    assert (breaker.state, breaker.trusts, breaker.num_failures) == (OPEN, False, 4)


def test_one_request_at_a_time_tries_a_half_open_breaker() -> None:
    breaker = opened()
    assert breaker.probe_answered()
    assert breaker.trusts
    trial = breaker.sent()
    assert not breaker.trusts
    breaker.left(trial)
    assert breaker.trusts, "the client left: no verdict"
    breaker.sent()
    assert breaker.succeeded()
    assert (breaker.state, breaker.trusts, breaker.num_failures) == (CLOSED, True, 0)


def test_a_request_that_was_sent_before_the_trial_ends_no_trial() -> None:
    breaker = Breaker(1)
    before = breaker.sent()
    breaker.failed(0.0)
    breaker.probe_answered()
    trial, beside = breaker.sent(), breaker.sent()
    for one in (before, beside):
        breaker.left(one)
        assert not breaker.trusts, "the trial is still under way"
    breaker.failed(0.0)
    breaker.probe_answered()
    following = breaker.sent()
    breaker.left(trial)
    assert not breaker.trusts, "another trial is under way"
    breaker.left(following)
    assert breaker.trusts


def test_a_request_that_succeeds_closes_an_open_breaker() -> None:
    """Nobody else was left, so it was tried."""
    breaker = opened()
    assert breaker.succeeded()
    assert breaker.trusts


def test_pauses_grow_until_the_breaker_closes() -> None:
    breaker = opened(100.0)
    assert breaker.wait_s(100.0) == FIRST_PAUSE_S
    assert breaker.wait_s(200.0) == 0.0
    breaker.probe_failed(101.0)
    assert breaker.wait_s(101.0) == 2 * FIRST_PAUSE_S
    breaker.probe_answered()
    assert breaker.failed(102.0), "the request that tried it"
    assert breaker.wait_s(102.0) == 4 * FIRST_PAUSE_S
    for _ in range(20):
        breaker.probe_failed(103.0)
    assert breaker.wait_s(103.0) == MAX_PAUSE_S
    breaker.succeeded()
    breaker.failed(104.0)
    assert breaker.wait_s(104.0) == FIRST_PAUSE_S


@given(st.lists(st.sampled_from(["failed", "succeeded", "answered", "silent", "sent", "left"]), max_size=40))
def test_any_order_of_events_keeps_to_the_table(events: list[str]) -> None:
    breaker = Breaker(3)
    sent: list[int] = []
    for event in events:
        before = breaker.state
        match event:
            case "failed":
                breaker.failed(0.0)
            case "succeeded":
                breaker.succeeded()
                assert breaker.state is CLOSED
            case "answered":
                breaker.probe_answered()
            case "silent":
                breaker.probe_failed(0.0)
            case "sent":
                sent.append(breaker.sent())
            case _:
                breaker.left(sent.pop() if sent else 0)
        assert breaker.state is before or breaker.state in TABLE[before].values()
        assert breaker.trusts or breaker.state is not CLOSED


def test_every_state_is_left_by_something() -> None:
    assert set(TABLE) == set(BreakerState)
    assert {event for row in TABLE.values() for event in row} == set(BreakerEvent)


def worker(name: str) -> Worker:
    return new_worker(worker_id=name, url="http://h:1", role=Role.DECODE, limit=1, standing=Standing(Breaker(1)))


def test_a_worker_that_fails_is_picked_only_when_nobody_else_is_there() -> None:
    pool = WorkerPool(1)
    good, bad = worker("good"), worker("bad")
    pool.failed(bad)
    assert available([good, bad], set()) == [good]
    assert available([good, bad], {good}) == [bad], "the good one has failed this request"
    place = pool.enter(good)
    assert available([good, bad], set()) == [], "wait for the good one"
    assert available([bad], set()) == [bad]
    pool.failed(good)
    pool.leave(place)
    assert available([good, bad], set()) == [good, bad]


class TestCluster:
    @pytest.fixture
    def settings(self, monkeypatch: pytest.MonkeyPatch) -> RouterSettings:
        monkeypatch.setattr(breakers, "FIRST_PAUSE_S", 60.0)  # no probe, unless a test says so
        return make_settings(breaker_failures=2)

    @pytest.mark.parametrize(
        "failure", [BROKEN, Refuse(401, {}), Reset(), StreamThen(1, "error")], ids=["500", "401", "reset", "in stream"]
    )
    async def test_a_worker_that_fails_is_left_out(self, cluster: Cluster, failure: Any) -> None:
        bad, good = await failing_d(cluster, failure)
        for _ in range(4):
            await cluster.post(chat(stream=True))
        assert states(cluster)["d1"] is OPEN
        num_sent = len(bad.bodies)
        for _ in range(4):
            assert (await cluster.post(chat())).status_code == 200
        assert len(bad.bodies) == num_sent
        assert len(good.bodies) >= 4
        rows = (await cluster.client.get("/admin/workers")).json()["workers"]
        assert [(row["breaker"], row["breaker_failures"], row["healthy"]) for row in rows] == [
            ("closed", 0, True),
            ("open", 2, True),
            ("closed", 0, True),
        ]
        metrics = (await cluster.client.get("/metrics")).text
        assert 'baton_router_worker_breaker{role="decode",state="open",worker="d1"} 1.0' in metrics
        assert 'baton_router_worker_breaker{role="decode",state="open",worker="d2"} 0.0' in metrics
        cluster.check_idle()

    @pytest.mark.parametrize(
        ("status", "code"), [(429, "queue_full"), (503, "draining"), (502, "kv_read_failed"), (400, "too_long")]
    )
    async def test_errors_that_are_not_the_workers_fault_do_not_count(
        self, cluster: Cluster, status: int, code: str
    ) -> None:
        refusal = Refuse(status, {"error": {"message": "no", "type": "x", "code": code}})
        await failing_d(cluster, refusal)
        for _ in range(6):
            await cluster.post(chat())
        assert set(states(cluster).values()) == {CLOSED}

    async def test_the_last_worker_is_tried_and_closes_with_a_success(self, cluster: Cluster) -> None:
        p, _ = await cluster.fleet("prefill", "decode")
        p.script.extend([BROKEN] * 3)
        assert (await cluster.post(chat())).status_code == 500
        assert states(cluster)["p0"] is OPEN
        assert (await cluster.post(chat())).status_code == 200
        assert states(cluster)["p0"] is CLOSED


async def test_a_probe_and_one_request_bring_a_worker_back(cluster: Cluster) -> None:
    bad, _ = await failing_d(cluster, BROKEN)
    (d1,) = [one for one in cluster.pool if one.worker_id == "d1"]
    d1.standing.breaker._pause_s = 0.01
    while states(cluster)["d1"] is CLOSED:
        await cluster.post(chat())
    bad.script.clear()
    await eventually(lambda: states(cluster)["d1"] is HALF_OPEN)
    while states(cluster)["d1"] is HALF_OPEN:
        assert (await cluster.post(chat())).status_code == 200
    assert states(cluster)["d1"] is CLOSED


async def failing_d(cluster: Cluster, failure: Any) -> list[Any]:
    """A P, a D that fails whatever it is asked, and a D that does not. Returns the two D."""
    _, bad, good = await cluster.fleet("prefill", "decode", "decode")
    if isinstance(failure, StreamThen):
        failure.go.set()
    bad.script.extend([failure] * 50)
    return [bad, good]


def states(cluster: Cluster) -> dict[str, BreakerState]:
    return {one.worker_id: one.standing.breaker.state for one in cluster.pool}
