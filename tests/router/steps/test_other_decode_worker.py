"""A D that has failed a request is not given it again, however much the placement would like that."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from baton_serve.router.pool import Worker
from tests.kits.router.cluster import Cluster, chat, spoken
from tests.kits.router.stub_workers import Refuse, Reset, StreamThen, StubWorker, word

BROKEN = {"error": {"message": "broken", "type": "server_error", "code": "oops"}}
pytestmark = pytest.mark.settings(pick_decode="least_loaded")


async def two_decoders(cluster: Cluster) -> tuple[StubWorker, StubWorker, Worker]:
    """One that is idle, one that is busy but has room, and how the router sees the busy one."""
    _, idle, busy = await cluster.fleet("prefill", "decode", "decode")
    (seen,) = [worker for worker in cluster.pool if worker.worker_id == busy.name]
    return idle, busy, seen


@pytest.mark.parametrize("failure", [Refuse(500, BROKEN), Reset()], ids=["500", "reset"])
async def test_a_d_that_fails_before_its_first_byte_is_not_asked_again(cluster: Cluster, failure: Any) -> None:
    idle, busy, seen = await two_decoders(cluster)
    places = [cluster.pool.enter(seen) for _ in range(4)]
    idle.script.append(failure)
    response = await cluster.post(chat())
    assert response.json()["choices"][0]["message"]["content"] == "".join(map(word, range(4)))
    assert [len(idle.bodies), len(busy.bodies)] == [1, 1]
    for place in places:
        cluster.pool.leave(place)
    cluster.check_idle()


@pytest.mark.parametrize("then", ["die", "error"])
async def test_a_d_that_fails_in_the_middle_of_a_stream_is_not_asked_again(cluster: Cluster, then: str) -> None:
    idle, busy, seen = await two_decoders(cluster)
    places = [cluster.pool.enter(seen) for _ in range(4)]
    breaks = StreamThen(2, then)
    idle.script = deque([breaks])
    request = asyncio.create_task(cluster.post(chat(stream=True, max_tokens=8)))
    await cluster.until_state("decoding")
    breaks.go.set()
    assert spoken((await request).text) == "".join(map(word, range(8)))
    assert [len(idle.bodies), len(busy.bodies)] == [1, 1]
    for place in places:
        cluster.pool.leave(place)
    cluster.check_idle()
