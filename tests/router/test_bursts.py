"""Many requests that come at once: the router starts a few of them in each turn of its loop."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from router.front.hot import MOST_IN_A_TURN, HotCalls
from tests.kits.router.cluster import chat, eventually, make_settings
from tests.kits.router.stub_workers import Hang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.kits.router.cluster import Cluster

NUM = 3 * MOST_IN_A_TURN + 5
_BODY = json.dumps(chat()).encode()
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer(reader: asyncio.StreamReader) -> bytes:
    """The status line of the next answer, which is read to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    await reader.readexactly(length)
    return head.split(b"\r\n", 1)[0]


@pytest.fixture
async def clients(cluster: Cluster) -> AsyncIterator[list[Client]]:
    """Connections that have had an answer, so that what is sent on all of them together is read in one turn."""
    for role in ("prefill", "decode"):
        await cluster.add(role, limit=2 * NUM)
    made = [await cluster.connect() for _ in range(NUM)]
    for reader, writer in made:
        writer.write(REQUEST)
        assert await answer(reader) == b"HTTP/1.1 200 OK"
    yield made
    for _, writer in made:
        writer.close()


@pytest.mark.interpreted
async def test_a_burst_is_started_a_few_requests_in_a_turn(
    cluster: Cluster, clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, turn, started = asyncio.get_running_loop(), 0, Counter[int]()
    real = HotCalls._start

    def start(*args: Any) -> None:
        started[turn] += 1
        real(*args)

    def count() -> None:
        nonlocal turn, counting
        turn += 1
        counting = loop.call_soon(count)

    monkeypatch.setattr(HotCalls, "_start", start)
    counting = loop.call_soon(count)
    for _, writer in clients:
        writer.write(REQUEST)
    for reader, _ in clients:
        assert await answer(reader) == b"HTTP/1.1 200 OK"
    counting.cancel()
    assert list(started.values()) == [MOST_IN_A_TURN] * 3 + [5]
    cluster.check_idle()


async def test_a_client_that_leaves_before_its_request_is_started_costs_nothing(
    cluster: Cluster, clients: list[Client]
) -> None:
    prefill, _ = cluster.workers
    before = len(prefill.bodies)
    for _, writer in clients:
        writer.write(REQUEST)
    clients[-1][1].transport.abort()  # seen in the turn after the one in which all are read
    for reader, _ in clients[:-1]:
        assert await answer(reader) == b"HTTP/1.1 200 OK"
    await eventually(cluster.is_idle)
    assert len(prefill.bodies) - before == NUM - 1
    assert [one.ended_in for one in cluster.ended() if one.outcome == "aborted"] == ["queued"]


@pytest.mark.parametrize("settings", [make_settings(max_queue_length=20)])
async def test_a_burst_that_waits_for_its_turn_does_not_overfill_the_queue(
    cluster: Cluster, clients: list[Client]
) -> None:
    """All of it is admitted before any of it waits for a worker."""
    prefill, _ = cluster.workers
    (worker,) = [one for one in cluster.services.pool if one.worker_id == prefill.name]
    worker.limit = 1
    hang = Hang()
    prefill.script.append(hang)
    for _, writer in clients:
        writer.write(REQUEST)
    await eventually(lambda: len(cluster.services.active) == 21)
    assert len(cluster.services.prefill_queue) == 20
    hang.release.set()
    lines = Counter([await answer(reader) for reader, _ in clients])
    assert lines == {b"HTTP/1.1 200 OK": 21, b"HTTP/1.1 429 Too Many Requests": NUM - 21}
    cluster.check_idle()
