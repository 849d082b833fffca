"""Who is let in, who waits, and who is refused for whom."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.router.queue.drain_rate import MAX_WAIT_S, MEMORY_S, MIN_WAIT_S, DrainRate
from baton_serve.router.queue.priorities import PriorityClasses, granted
from baton_serve.router.settings import RouterSettings
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.stub_workers import Hang

if TYPE_CHECKING:
    import httpx


# --- how long to wait


def test_the_estimate_of_a_wait_goes_by_the_pace_of_late() -> None:
    pace = DrainRate()
    for second in range(10):
        pace.left(100.0 + second)
    assert pace.wait_s(20, 110.0) == 20.0
    assert pace.wait_s(0, 110.0) == MIN_WAIT_S
    assert pace.wait_s(20, 120.0) == 40.0, "nothing has moved since"
    assert pace.wait_s(20, 110.0 + MEMORY_S) == MAX_WAIT_S, "what is too long ago does not count"


@given(st.lists(st.floats(0, 1000), max_size=200), st.integers(0, 10**6))
def test_the_estimate_of_a_wait_has_bounds(departures: list[float], num_waiting: int) -> None:
    pace = DrainRate()
    for now_s in sorted(departures):
        pace.left(now_s)
    assert MIN_WAIT_S <= pace.wait_s(num_waiting, 1000.0) <= MAX_WAIT_S


# --- classes


def test_priority_classes_are_names_for_numbers() -> None:
    classes = PriorityClasses(["low=5", "high = -7", "normal=0"])
    assert classes.names == ["high", "normal", "low"]
    assert classes.number_of(b" High ") == -7
    names = {priority: classes.name_of(priority) for priority in (-1000, -7, -6, 0, 1, 5, 6)}
    assert names == {-1000: "high", -7: "high", -6: "normal", 0: "normal", 1: "low", 5: "low", 6: "low"}
    with pytest.raises(BadRequestError, match="high, normal, low") as caught:
        classes.number_of(b"\xff\r\nx: y")
    assert caught.value.param == "x-baton-priority"


@pytest.mark.parametrize(
    "pairs", [[], ["a"], ["=1"], ["A=1"], ["a b=1"], ["a=1001"], ["a=x"], ["a=1", "a=2"], ["a=1", "b=1"]]
)
def test_priority_classes_that_make_no_sense_are_refused(pairs: list[str]) -> None:
    with pytest.raises(ValueError):
        RouterSettings.model_validate({"priority_classes": pairs})


@given(st.integers(-1000, 1000))
def test_a_client_makes_itself_less_urgent_or_is_trusted(asked: int) -> None:
    assert granted("ignore", asked) == 0
    assert granted("lower_only", asked) == max(0, asked)
    assert granted("trusted", asked) == asked


# --- through the router


# Priorities as a gateway sets them.
pytestmark = pytest.mark.settings(client_priority="trusted")


async def busy(cluster: Cluster) -> tuple[Hang, asyncio.Task[httpx.Response]]:
    """A decode worker of one place, which is taken: what it hangs on, and the request."""
    await cluster.add("prefill")
    d = await cluster.add("decode", limit=1)
    hang = d.hangs()
    running = asyncio.create_task(cluster.post(chat(user="running")))
    await cluster.until_state("reading")
    return hang, running


async def wait(cluster: Cluster, held: int, header: str = "", **body: Any) -> asyncio.Task[httpx.Response]:
    """One more request, which is then held."""
    headers = {"x-baton-priority": header} if header else {}
    asked = asyncio.create_task(cluster.post(chat(**body), headers=headers))
    await eventually(lambda: len(cluster.queues.held) == held or asked.done())
    return asked


async def test_the_header_names_a_class_and_wins_over_the_body(cluster: Cluster) -> None:
    hang, running = await busy(cluster)
    asked = [
        await wait(cluster, 1, "low", user="low", priority=-1000),
        await wait(cluster, 2, user="body", priority=-5),
    ]
    asked.append(await wait(cluster, 3, "high", user="high"))
    asked.append(await wait(cluster, 4, user="none"))
    text = (await cluster.client.get("/metrics")).text
    for name, count in (("high", 1), ("normal", 2), ("low", 1)):
        assert f'baton_router_waiting_requests{{priority_class="{name}",queue="held"}} {count}.0' in text
        assert f'baton_router_waiting_requests{{priority_class="{name}",queue="prefill"}} 0.0' in text
    hang.release.set()
    assert [(await one).status_code for one in (running, *asked)] == [200] * 5
    for worker in cluster.workers:
        told = {body["user"]: body.get("priority") for body in worker.bodies}
        assert told == {"running": None, "high": -10, "body": -5, "none": None, "low": 10}
    assert [body["user"] for body in cluster.workers[1].bodies] == ["running", "high", "body", "none", "low"]
    assert set(cluster.metrics.waiting.values()) == {0}
    await eventually(lambda: len(cluster.active) == 0)
    cluster.check_idle()


@pytest.mark.parametrize(
    ("headers", "body", "param"),
    [
        ({"x-baton-priority": "vip"}, {}, "x-baton-priority"),
        ({"x-baton-priority": ""}, {}, "x-baton-priority"),
        ({}, {"priority": 1001}, "priority"),
        ({}, {"priority": -1001}, "priority"),
    ],
)
async def test_a_malformed_priority_is_refused(
    cluster: Cluster, headers: dict[str, str], body: dict[str, Any], param: str
) -> None:
    await cluster.fleet("prefill", "decode")
    response = await cluster.post(chat(**body), headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.settings(max_queue_length=2, client_priority="trusted")
class TestFullQueue:
    async def test_the_least_urgent_and_youngest_makes_room(self, cluster: Cluster) -> None:
        hang, running = await busy(cluster)
        old, young = await wait(cluster, 1, user="old"), await wait(cluster, 2, user="young")
        same = await cluster.post(chat(user="same"))
        assert (same.status_code, same.json()["error"]["type"]) == (429, "rate_limit_error")
        assert same.headers["retry-after"] == "60", "nobody has left the queue yet"
        high = asyncio.create_task(cluster.post(chat(user="high", priority=-1)))
        refused = await young
        assert (refused.status_code, 1 <= int(refused.headers["retry-after"]) <= 60) == (429, True)
        assert "more urgent" in refused.json()["error"]["message"]
        await eventually(lambda: len(cluster.queues.held) == 2)
        assert (await cluster.post(chat(), headers={"x-baton-priority": "low"})).status_code == 429
        hang.release.set()
        assert [(await one).status_code for one in (running, old, high)] == [200] * 3
        assert [body["user"] for body in cluster.workers[1].bodies] == ["running", "high", "old"]
        assert "baton_router_displaced_total 1.0" in (await cluster.client.get("/metrics")).text
        assert cluster.leases.released == ["leasep03"]
        cluster.check_idle()

    async def test_a_request_that_has_shown_its_first_token_stays(self, cluster: Cluster) -> None:
        hang, running = await busy(cluster)
        writers = [await cluster.open(chat(stream=True)) for _ in range(2)]
        await cluster.until_state("held", 2)
        assert (await cluster.post(chat(priority=-9))).status_code == 429
        for writer in writers:
            writer.close()
        hang.release.set()
        assert (await running).status_code == 200
        await eventually(lambda: len(cluster.active) == 0)
        cluster.check_idle()

    async def test_a_full_queue_with_no_worker_to_wait_for_is_another_error(self, cluster: Cluster) -> None:
        hang, running = await busy(cluster)
        asked = [await wait(cluster, 1), await wait(cluster, 2)]
        (d,) = [one for one in cluster.pool if one.worker_id == "d1"]
        d.standing.healthy = False
        response = await cluster.post(chat())
        assert response.status_code == 503
        assert 1 <= int(response.headers["retry-after"]) <= 60
        cluster.pool.recovered(d)
        hang.release.set()
        assert [(await one).status_code for one in (running, *asked)] == [200] * 3


def of_size(num_bytes: int, **kwargs: Any) -> dict[str, Any]:
    body = chat(**kwargs, user="")
    body["user"] = "u" * (num_bytes - len(json.dumps(body, separators=(",", ":"))))
    return body


@pytest.mark.settings(max_queued_bytes=500, client_priority="trusted")
class TestBytes:
    async def test_bodies_that_wait_are_bounded(self, cluster: Cluster) -> None:
        hang, running = await busy(cluster)
        first = asyncio.create_task(cluster.post(of_size(300)))
        await eventually(lambda: len(cluster.queues.held) == 1)
        assert cluster.queues.held.num_bytes == 300
        assert (await cluster.post(of_size(201))).status_code == 429
        second = asyncio.create_task(cluster.post(of_size(200)))
        await eventually(lambda: len(cluster.queues.held) == 2)
        third = asyncio.create_task(cluster.post(of_size(400, priority=-1)))
        assert [(await one).status_code for one in (first, second)] == [429, 429], "both, to make room for one"
        hang.release.set()
        assert [(await one).status_code for one in (running, third)] == [200, 200]
        assert cluster.queues.held.num_bytes == cluster.queues.prefill.num_bytes == 0
        cluster.check_idle()

    async def test_no_request_is_displaced_for_one_that_would_not_fit_all_the_same(self, cluster: Cluster) -> None:
        hang, running = await busy(cluster)
        asked = [asyncio.create_task(cluster.post(of_size(250, priority=-2)))]
        await eventually(lambda: len(cluster.queues.held) == 1)
        asked.append(asyncio.create_task(cluster.post(of_size(250))))
        await eventually(lambda: len(cluster.queues.held) == 2)
        assert (await cluster.post(of_size(300, priority=-1))).status_code == 429
        assert cluster.metrics.num_displaced == 0
        hang.release.set()
        assert [(await one).status_code for one in (running, *asked)] == [200] * 3
        cluster.check_idle()


@pytest.mark.settings(max_queue_length=2)
class TestUrgentClients:
    """Clients that say that they are urgent, by default."""

    async def test_urgent_clients_displace_nobody_and_come_in_their_turn(self, cluster: Cluster) -> None:
        hang, running = await busy(cluster)
        asked = [await wait(cluster, 1, user="first"), await wait(cluster, 2, user="second")]
        assert (await cluster.post(chat(priority=-1000))).status_code == 429
        assert (await cluster.post(chat(), headers={"x-baton-priority": "high"})).status_code == 429
        assert cluster.metrics.num_displaced == 0
        hang.release.set()
        assert [(await one).status_code for one in (running, *asked)] == [200] * 3
        cluster.check_idle()

    async def test_workers_are_told_what_was_granted(self, cluster: Cluster) -> None:
        p, d = await cluster.fleet("prefill", "decode")
        for body, header in [(-7, ""), (7, ""), (-7, "low"), (7, "high")]:
            headers = {"x-baton-priority": header} if header else {}
            assert (await cluster.post(chat(priority=body), headers=headers)).status_code == 200
        for worker in (p, d):
            assert [body["priority"] for body in worker.bodies] == [0, 7, 10, 0]


@pytest.mark.settings(client_priority="ignore")
async def test_priorities_that_are_ignored_do_not_count(cluster: Cluster) -> None:
    hang, running = await busy(cluster)
    asked = [await wait(cluster, 1, user="1", priority=9), await wait(cluster, 2, "high", user="2")]
    hang.release.set()
    assert [(await one).status_code for one in (running, *asked)] == [200] * 3
    assert [body["user"] for body in cluster.workers[1].bodies] == ["running", "1", "2"]
