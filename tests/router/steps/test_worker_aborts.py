"""What workers abort although nobody here wanted it: the others had given this router up while it stood still."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from baton_serve.core.protocol.router import REFUSE_GONE_S, TELL_GONE_S
from baton_serve.router.request import attempts
from tests.kits.router.cluster import Cluster, chat, events, eventually, spoken
from tests.kits.router.stub_workers import Refuse, StreamThen, StubWorker, word

WHOLE = "".join(map(word, range(4)))
REFUSED = Refuse(499, {"error": {"message": "it was aborted", "type": "request_cancelled", "code": "aborted"}})
WAITS_S = attempts.ABORT_WAITS_S
STREAMED = pytest.mark.parametrize("stream", [False, True])
ROLES = pytest.mark.parametrize("role", ["prefill", "decode", "both"])


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many, but short ones."""
    monkeypatch.setattr(attempts, "ABORT_WAITS_S", (0.001,) * len(WAITS_S))


@pytest.fixture
def long_waits(waits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what ends a wait goes on."""
    monkeypatch.setattr(attempts, "ABORT_WAITS_S", (60.0,))


async def refusing(cluster: Cluster, role: str, times: int) -> StubWorker:
    """The only worker of that role, which will do this so often."""
    workers = {one: await cluster.add(one) for one in ([role] if role == "both" else ["prefill", "decode"])}
    workers[role].script.extend([REFUSED] * times)
    return workers[role]


def breaker_failures(cluster: Cluster) -> int:
    return sum(worker.standing.breaker.num_failures for worker in cluster.pool)


def test_the_waits_are_longer_than_workers_refuse() -> None:
    """From the last moment on at which the others tell a worker."""
    assert sum(WAITS_S) > REFUSE_GONE_S + TELL_GONE_S


@ROLES
@STREAMED
async def test_a_refused_request_is_tried_until_it_is_taken(cluster: Cluster, role: str, stream: bool) -> None:
    """More often than attempts are allowed: nobody has failed, and nobody is left out for it."""
    num_times = len(WAITS_S)
    assert num_times > cluster.settings.max_prefill_attempts
    worker = await refusing(cluster, role, num_times)
    response = await cluster.post(chat(stream=stream))
    text = spoken(response.text) if stream else response.json()["choices"][0]["message"]["content"]
    assert (response.status_code, text) == (200, WHOLE)
    assert len(worker.bodies) == num_times + 1
    assert breaker_failures(cluster) == 0
    cluster.check_idle()


@ROLES
async def test_the_tries_of_a_refused_request_are_bounded(cluster: Cluster, role: str) -> None:
    worker = await refusing(cluster, role, 99)
    response = await cluster.post(chat())
    assert (response.status_code, response.json()["error"]["code"]) == (499, "aborted")
    assert len(worker.bodies) == len(WAITS_S) + 1
    cluster.check_idle()


async def test_a_stream_goes_on_where_it_was_aborted(cluster: Cluster) -> None:
    """The tokens had come, then the abort; and P takes nothing for a while, either."""
    p, d = await cluster.fleet("prefill", "decode")
    act = StreamThen(1, "error")
    d.error_code = "aborted"
    d.script.append(act)
    p.script.extend([None, REFUSED, REFUSED])
    text = await cluster.streamed(chat(stream=True), act, after=word(1))
    assert (spoken(text), events(text)[-1]) == (WHOLE, "[DONE]")
    assert (len(p.bodies), len(d.bodies)) == (4, 2)
    assert breaker_failures(cluster) == 0
    assert cluster.metrics.resumed["resumed"] == 1
    cluster.check_idle()


@pytest.mark.usefixtures("long_waits")
class TestWhoEndsIt:
    """While it waits for the next try, it ends as it does anywhere else, and is not tried."""

    async def waiting(self, cluster: Cluster, worker: StubWorker) -> None:
        await eventually(lambda: len(worker.bodies) == 1)
        await cluster.until_state("queued")
        assert [worker.usage.in_flight for worker in cluster.pool] == [0, 0], "it holds no place meanwhile"

    @pytest.mark.parametrize("role", ["prefill", "decode"])
    async def test_a_client_that_leaves_ends_the_wait_for_the_next_try(self, cluster: Cluster, role: str) -> None:
        worker = await refusing(cluster, role, 1)
        writer = await cluster.open(chat())
        await self.waiting(cluster, worker)
        writer.close()
        await eventually(lambda: cluster.metrics.outcomes["aborted", "client_gone"] == 1)
        assert len(worker.bodies) == 1
        cluster.check_idle()

    async def test_an_administrator_ends_the_wait_for_the_next_try(self, cluster: Cluster) -> None:
        worker = await refusing(cluster, "prefill", 1)
        request = asyncio.create_task(cluster.post(chat()))
        await self.waiting(cluster, worker)
        (live,) = cluster.active
        await cluster.client.post(f"/admin/requests/{live.request_id}/abort")
        assert (await request).json()["error"]["code"] == "request_cancelled"
        assert len(worker.bodies) == 1
        cluster.check_idle()

    async def test_the_deadline_ends_the_wait_for_the_next_try(self, cluster: Cluster) -> None:
        worker = await refusing(cluster, "prefill", 1)
        response = await cluster.post(chat(), headers={"x-request-timeout": "0.3"})
        assert response.status_code == 504
        assert len(worker.bodies) == 1
        cluster.check_idle()


@pytest.mark.settings(retry_budget_fraction=0.0, retry_budget_floor_per_s=0.2)
class TestBudget:
    async def test_the_retries_of_all_requests_together_are_bounded(self, cluster: Cluster) -> None:
        """However often each is refused: waiting costs no worker anything."""
        worker = await refusing(cluster, "prefill", 0)
        codes: list[Any] = []
        for num_times in (len(WAITS_S), 3, 1, 0):
            worker.script.extend([REFUSED] * num_times)
            codes.append((await cluster.post(chat())).status_code)
        assert codes == [200, 200, 499, 200]
        assert len(worker.bodies) == len(WAITS_S) + 3 + 1 + 3
        assert cluster.metrics.num_over_budget == 1

    async def test_a_stream_that_was_aborted_pays_once(self, cluster: Cluster) -> None:
        p, d = await cluster.fleet("prefill", "decode")
        d.error_code = "aborted"
        for _ in range(2):
            act = StreamThen(1, "error")
            d.script.append(act)
            p.script.extend([None, REFUSED, REFUSED, REFUSED])
            assert spoken(await cluster.streamed(chat(stream=True), act, after=word(1))) == WHOLE
        assert cluster.metrics.num_over_budget == 0
