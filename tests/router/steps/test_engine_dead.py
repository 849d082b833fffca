"""A worker whose engine is dead still answers for a moment: it is as gone as one that refuses connections."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from tests.kits.router.cluster import Cluster, chat, events, eventually, spoken
from tests.kits.router.stub_workers import Raw, Refuse, word

WHOLE = "".join(map(word, range(4)))
#: By default, of one leg.
MAX_ATTEMPTS = 3
CODES = pytest.mark.parametrize("code", ["engine_dead", "engine_gone"])
DIED = {"error": {"message": "rank 0 was killed", "type": "service_unavailable_error", "code": "engine_dead"}}


async def answers(cluster: Cluster, num: int) -> list[str]:
    """What so many clients at once are told, half of them in a stream; texts or the codes of errors."""

    async def one(stream: bool) -> str:
        response = await cluster.post(chat(stream=stream))
        if response.status_code != 200:
            return str(response.json()["error"]["code"])
        return spoken(response.text) if stream else str(response.json()["choices"][0]["message"]["content"])

    return await asyncio.gather(*(one(i % 2 == 0) for i in range(num)))


def is_healthy(cluster: Cluster, name: str) -> bool:
    return next(worker for worker in cluster.pool if worker.worker_id == name).standing.healthy


@CODES
async def test_the_only_p_does_not_fail_what_a_d_can_serve(
    cluster: Cluster, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    p, d = await cluster.add("prefill"), await cluster.add("decode", limit=100)
    p.dead = code
    with caplog.at_level(logging.WARNING, "baton.router"):
        assert await answers(cluster, 12) == [WHOLE] * 12
    assert "worker p0 has no engine any more" in caplog.text
    num_asked = len(p.bodies)
    assert num_asked <= 12, "each of them once at most, before anybody knew"
    assert await answers(cluster, 2) == [WHOLE] * 2
    assert len(p.bodies) == num_asked, "it is left out"
    p.dead = ""
    await eventually(lambda: is_healthy(cluster, "p0"))
    assert await answers(cluster, 1) == [WHOLE]
    assert len(p.bodies) == num_asked + 1
    assert len(d.bodies) == 15
    cluster.check_idle()


@pytest.mark.settings(
    max_prefill_attempts=1,
    max_decode_attempts=1,
    max_worker_deaths=1,
    retry_budget_fraction=0.0,
    retry_budget_floor_per_s=0.0,
)
class TestNothingToSpare:
    """One attempt, one death, no retry: what never reached an engine costs nothing of it."""

    @pytest.mark.parametrize("role", ["prefill", "decode"])
    async def test_a_refusal_by_a_worker_whose_engine_is_dead_is_no_attempt(self, cluster: Cluster, role: str) -> None:
        """Each kind has three workers, of which two have no engine any more."""
        await cluster.add("decode" if role == "prefill" else "prefill")
        for worker in [await cluster.add(role) for _ in range(3)][:2]:
            worker.dead = "engine_gone"
        assert await answers(cluster, 6) == [WHOLE] * 6
        assert "0 retries" in repr(cluster.retry_budget)
        cluster.check_idle()

    async def test_the_only_d_is_waited_for_when_its_engine_is_dead(self, cluster: Cluster) -> None:
        p, d = await cluster.fleet("prefill", "decode")
        d.dead = "engine_gone"
        asked = asyncio.create_task(cluster.post(chat()))
        await eventually(lambda: not is_healthy(cluster, "d1"))
        await cluster.until_state("held")
        d.dead = ""
        assert (await asked).json()["choices"][0]["message"]["content"] == WHOLE
        assert len(p.bodies) == 1
        cluster.check_idle()

    async def test_the_only_worker_of_all_is_waited_for_until_it_is_started_again(self, cluster: Cluster) -> None:
        only = await cluster.add("both")
        only.dead = "engine_gone"
        asked = asyncio.create_task(cluster.post(chat()))
        await eventually(lambda: not is_healthy(cluster, "b0"))
        cluster.pool.apply([])
        only.dead = ""
        cluster.announce()
        assert (await asked).status_code == 200


GONE = Refuse(503, {"error": {"message": "no engine", "type": "service_unavailable_error", "code": "engine_gone"}})


@pytest.mark.parametrize("role", ["prefill", "decode", "both"])
async def test_a_worker_that_is_healthy_and_takes_nothing_is_asked_a_few_times(cluster: Cluster, role: str) -> None:
    """Its ``/health`` is fine, so a probe brings it back each time."""
    workers = [await cluster.add(each) for each in ((role,) if role == "both" else ("prefill", "decode"))]
    (bad,) = (one for one in workers if one.role == role)
    other = await cluster.add(role)
    bad.script.extend([GONE] * 50)
    assert await answers(cluster, 2) == [WHOLE] * 2, "another one takes them"
    await other.stop()
    cluster.workers.remove(other)
    cluster.announce()
    bad.bodies.clear()
    response = await cluster.post(chat())
    if role == "prefill":  # D does it all
        assert response.status_code == 200
    else:
        assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_unreachable")
    assert len(bad.bodies) <= 1 + MAX_ATTEMPTS * MAX_ATTEMPTS
    cluster.check_idle()


async def test_an_engine_that_dies_with_a_request_is_left_at_once(cluster: Cluster) -> None:
    """The request is one that was there when it died; others are not even sent there."""
    p, d = await cluster.fleet("prefill", "decode")
    p.script.append(Refuse(503, DIED))
    p.health_gate.clear()
    assert await answers(cluster, 1) == [WHOLE]
    assert (len(p.bodies), len(d.bodies)) == (1, 1)
    assert not is_healthy(cluster, "p0")
    p.health_gate.set()
    await eventually(lambda: is_healthy(cluster, "p0"))


async def test_an_engine_that_dies_in_the_middle_of_a_stream_is_left_at_once(cluster: Cluster) -> None:
    _, d1, d2 = await cluster.fleet("prefill", "decode", "decode")
    token = b':8\ndata: {"choices":[{"index":0,"delta":{"content":" t1"}}]}\n\n'
    raws = [Raw([token, None, b"data: %b\n\n" % json.dumps(DIED).encode()]) for _ in range(2)]
    for d, raw in zip((d1, d2), raws, strict=True):
        d.health_gate.clear()
        d.script.append(raw)
    asked = asyncio.create_task(cluster.post(chat(stream=True)))
    await cluster.until_state("decoding")
    (name,) = [d.name for d in (d1, d2) if d.bodies]
    for d in (d1, d2):
        d.script.clear()
    for raw in raws:
        raw.go.set()
    text = (await asked).text
    assert (spoken(text), events(text)[-1]) == (WHOLE, "[DONE]")
    assert not is_healthy(cluster, name)
    for d in (d1, d2):
        d.health_gate.set()
    cluster.check_idle()
