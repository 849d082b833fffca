"""Many requests that come at once: the router starts a few of them in each turn of its loop."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from baton_serve.router.front.worker_calls import MOST_IN_A_TURN, WorkerCalls
from tests.kits.port import Caller
from tests.kits.router.cluster import Cluster, chat, eventually

NUM = 3 * MOST_IN_A_TURN + 5


def request(path: str, body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    head = "POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return (head % (path, len(raw))).encode() + raw


REQUEST = request("/v1/chat/completions", chat())


@pytest.fixture
async def clients(cluster: Cluster) -> list[Caller]:
    """Connections that have had an answer, so that what is sent on all of them together is read in one turn."""
    for role in ("prefill", "decode"):
        await cluster.add(role, limit=2 * NUM)
    made = [Caller(*await cluster.connect()) for _ in range(NUM)]
    for caller in made:
        caller.writer.write(REQUEST)
        assert (await caller.answer()).status == 200
    return made


@pytest.mark.interpreted
async def test_a_burst_is_started_a_few_requests_in_a_turn(
    cluster: Cluster, clients: list[Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, turn, started = asyncio.get_running_loop(), 0, Counter[int]()
    real = WorkerCalls._start

    def start(*args: Any, **kwargs: Any) -> None:
        started[turn] += 1
        real(*args, **kwargs)

    def count() -> None:
        nonlocal turn, counting
        turn += 1
        counting = loop.call_soon(count)

    monkeypatch.setattr(WorkerCalls, "_start", start)
    counting = loop.call_soon(count)
    for caller in clients:
        caller.writer.write(REQUEST)
    for caller in clients:
        assert (await caller.answer()).status == 200
    counting.cancel()
    assert list(started.values()) == [MOST_IN_A_TURN] * 3 + [5]
    cluster.check_idle()


async def test_a_client_that_leaves_before_its_request_is_started_costs_nothing(
    cluster: Cluster, clients: list[Caller]
) -> None:
    prefill, _ = cluster.workers
    before = len(prefill.bodies)
    for caller in clients:
        caller.writer.write(REQUEST)
    clients[-1].writer.transport.abort()  # seen in the turn after the one in which all are read
    for caller in clients[:-1]:
        assert (await caller.answer()).status == 200
    await eventually(cluster.is_idle)
    assert len(prefill.bodies) - before == NUM - 1
    assert [one.ended_in for one in cluster.ended() if one.outcome == "aborted"] == ["queued"]


@pytest.mark.settings(max_queue_length=10)
async def test_a_burst_does_not_overfill_the_queue(cluster: Cluster, clients: list[Caller]) -> None:
    """Its requests, in one turn more than may wait, are admitted before any of them waits for a worker."""
    prefill, _ = cluster.workers
    (worker,) = [one for one in cluster.pool if one.worker_id == prefill.name]
    worker.usage.limit = 1
    hang = prefill.hangs()
    for caller in clients:
        caller.writer.write(REQUEST)
    await eventually(lambda: len(cluster.active) == 11)
    assert len(cluster.queues.prefill) == 10
    hang.release.set()
    assert Counter([(await caller.answer()).status for caller in clients]) == {200: 11, 429: NUM - 11}
    cluster.check_idle()


@pytest.mark.settings(max_queue_length=10)
@pytest.mark.parametrize(
    ("roles", "more"),
    [
        (("both",), {"n": 8}),
        (("both",), {"prompt": list("abcdefgh")}),
        (("prefill", "decode"), {"prompt": list("abcdefgh")}),
    ],
)
async def test_a_burst_of_requests_for_several_answers_does_not_overfill_the_queue(
    cluster: Cluster, roles: tuple[str, ...], more: dict[str, Any]
) -> None:
    """The first answer of each asks for room for all of them, since the others follow it at once."""
    for role in roles:
        await cluster.add(role, limit=16)
    callers = [Caller(*await cluster.connect()) for _ in range(6)]
    for caller in callers:
        caller.writer.write(REQUEST)
        assert (await caller.answer()).status == 200
    pool = cluster.pool
    first, *_ = pool
    taken = [pool.enter(first) for _ in range(first.usage.limit)]
    for caller in callers:
        caller.writer.write(request("/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 4, **more}))
    answers = [asyncio.create_task(caller.answer()) for caller in callers]
    await eventually(lambda: sum(one.done() for one in answers) == len(callers) - 1, "all but one are refused")
    assert len(cluster.queues.prefill) + len(cluster.queues.held) == 8
    for place in taken:
        pool.leave(place)
    assert Counter([(await one).status for one in answers]) == {200: 1, 429: len(callers) - 1}
    await eventually(cluster.is_idle)
