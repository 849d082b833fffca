"""When the last worker is gone: who has been served waits for one to come, who has not is told at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.kits.router.cluster import Cluster, chat, events, eventually, spoken
from tests.kits.router.stub_workers import StreamThen, word

if TYPE_CHECKING:
    import httpx

NUM_TOKENS = 8
BODY = chat(stream=True, max_tokens=NUM_TOKENS)
WHOLE = "".join(map(word, range(NUM_TOKENS)))
HOW = pytest.mark.parametrize("how", ["gone", "unreachable"])


async def decoding(cluster: Cluster) -> tuple[asyncio.Task[httpx.Response], asyncio.Event]:
    """A stream under way, and what lets its D die."""
    _, d = await cluster.fleet("prefill", "decode")
    act = StreamThen(2, "die")
    d.script.append(act)
    request = asyncio.create_task(cluster.post(BODY))
    await cluster.until_state("decoding")
    return request, act.go


async def all_go(cluster: Cluster, how: str) -> asyncio.Task[httpx.Response]:
    """A stream whose D dies when nobody is there: none is known, or none can be reached."""
    request, die = await decoding(cluster)
    pool = cluster.pool
    if how == "gone":
        pool.apply([])
    else:
        for stub in cluster.workers:
            stub.health_gate.clear()
        for worker in pool:
            pool.unreachable(worker)
    die.set()
    await cluster.until_state("queued")
    return request


def all_come(cluster: Cluster, how: str) -> None:
    if how == "gone":
        cluster.announce()
    for stub in cluster.workers:
        stub.health_gate.set()


@HOW
async def test_a_stream_goes_on_when_somebody_has_come(cluster: Cluster, how: str) -> None:
    request = await all_go(cluster, how)
    assert (await cluster.post(BODY)).status_code == 503, "a new one is told at once"
    assert not request.done()
    all_come(cluster, how)
    assert spoken((await request).text) == WHOLE
    cluster.check_idle()


async def test_a_stream_waits_for_workers_of_its_own_weights(cluster: Cluster) -> None:
    """As when the last of the old ones is replaced a little too soon."""
    request, die = await decoding(cluster)
    others = [await cluster.add(role, digest="new", weights="others") for role in ("prefill", "decode")]
    cluster.pool.apply([cluster._status(other) for other in others])
    die.set()
    await cluster.until_state("queued")
    assert (await cluster.post(BODY)).status_code == 200, "a new one is served by the others"
    for other in others:
        other.bodies.clear()
    cluster.announce()
    assert spoken((await request).text) == WHOLE
    assert [other.bodies for other in others] == [[], []]
    cluster.check_idle()


@HOW
async def test_a_client_that_leaves_meanwhile_is_forgotten(cluster: Cluster, how: str) -> None:
    num_listeners = len(cluster.pool.on_room)
    request = await all_go(cluster, how)
    assert len(cluster.pool.on_room) == num_listeners + 1
    request.cancel()
    await eventually(lambda: len(cluster.active) == 0)
    assert len(cluster.pool.on_room) == num_listeners


@pytest.mark.settings(held_timeout_s=0.2)
@HOW
async def test_a_stream_that_nobody_comes_for_ends_with_the_error_of_the_last_worker(
    cluster: Cluster, how: str
) -> None:
    answer = await (await all_go(cluster, how))
    assert events(answer.text)[-1]["error"]["code"] == "upstream_error"
    cluster.check_idle()
