"""A D that has failed a request is not given it again, however much the placement would like that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kits.router.cluster import Cluster, chat, spoken
from tests.kits.router.stub_workers import Refuse, Reset, StreamThen, StubWorker, word

BROKEN = {"error": {"message": "broken", "type": "server_error", "code": "oops"}}
pytestmark = pytest.mark.settings(pick_decode="least_loaded")


@pytest.fixture
async def pair(cluster: Cluster) -> AsyncIterator[tuple[StubWorker, StubWorker]]:
    """A D that is idle, and one that is busy but has room."""
    _, idle, busy = await cluster.fleet("prefill", "decode", "decode")
    (seen,) = [worker for worker in cluster.pool if worker.worker_id == busy.name]
    places = [cluster.pool.enter(seen) for _ in range(4)]
    yield idle, busy
    for place in places:
        cluster.pool.leave(place)
    cluster.check_idle()


@pytest.mark.parametrize("failure", [Refuse(500, BROKEN), Reset()], ids=["500", "reset"])
async def test_a_d_that_fails_before_its_first_byte_is_not_asked_again(
    cluster: Cluster, pair: tuple[StubWorker, StubWorker], failure: Any
) -> None:
    idle, busy = pair
    idle.script.append(failure)
    response = await cluster.post(chat())
    assert response.json()["choices"][0]["message"]["content"] == "".join(map(word, range(4)))
    assert [len(idle.bodies), len(busy.bodies)] == [1, 1]


@pytest.mark.parametrize("then", ["die", "error"])
async def test_a_d_that_fails_in_the_middle_of_a_stream_is_not_asked_again(
    cluster: Cluster, pair: tuple[StubWorker, StubWorker], then: str
) -> None:
    idle, busy = pair
    breaks = StreamThen(2, then)
    idle.script.append(breaks)
    text = await cluster.streamed(chat(stream=True, max_tokens=8), breaks, after=word(2))
    assert spoken(text) == "".join(map(word, range(8)))
    assert [len(idle.bodies), len(busy.bodies)] == [1, 1]
