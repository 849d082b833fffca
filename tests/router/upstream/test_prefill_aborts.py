"""A prefill that is left before its answer was read: P is told by id, whoever left and why, and nobody waits for it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from core.net.client.errors import ConnectError
from core.protocol.hello import worker_proof
from core.protocol.token_keys import hello_key
from core.protocol.worker import Role
from router.pool import Worker
from router.settings import RouterSettings
from router.upstream import prefill_aborts
from router.upstream.internal_calls import InternalCalls
from router.upstream.prefill_aborts import PrefillAborts
from tests.kits.router.cluster import Cluster, chat, eventually, make_settings
from tests.kits.router.stub_workers import HalfAnswer, Hang, StubWorker

SECRET = "between-us"
P = Worker(worker_id="p", url="http://p", role=Role.PREFILL, limit=1, internal_url="http://p")
Q = Worker(worker_id="q", url="http://q", role=Role.PREFILL, limit=1, internal_url="http://q")


async def half_answered(cluster: Cluster) -> tuple[StubWorker, Any]:
    """A request whose P has granted a lease in an answer of which half has come."""
    p = await cluster.add("prefill")
    await cluster.add("decode")
    p.script.append(HalfAnswer())
    writer = await cluster.open(chat(stream=True))
    await cluster.until_state("prefilling")
    (x,) = cluster.services.active
    await eventually(lambda: x.answer is not None)
    assert p.num_leases == 1
    return p, writer


async def until_told(cluster: Cluster, p: StubWorker) -> None:
    """The abort has reached P, and its lease is gone."""
    await cluster.until_state("prefilling", 0)
    await eventually(lambda: cluster.services.prefill_aborts.outcomes["aborted"] == 1)
    assert p.aborts == [p.headers[0]["x-request-id"]] == p.lease_owners
    await eventually(lambda: p.num_disconnects == 1)
    cluster.check_idle()


@pytest.mark.parametrize("why", ["client", "admin", "deadline", "shutdown"])
async def test_a_p_whose_answer_is_half_read_drops_its_lease(cluster: Cluster, why: str) -> None:
    p, writer = await half_answered(cluster)
    (x,) = cluster.services.active
    if why == "client":
        writer.close()
    elif why == "admin":
        await cluster.client.post(f"/admin/requests/{x.request_id}/abort")
    elif why == "deadline":
        x.deadline()
    else:
        cluster.server.stop()
    await until_told(cluster, p)
    assert "authorization" not in p.abort_headers[0]
    if why != "shutdown":
        page = (await cluster.client.get("/metrics")).text
        assert 'baton_router_prefill_aborts_total{outcome="aborted"} 1.0' in page
    writer.close()


async def test_an_answer_that_was_read_is_not_aborted(cluster: Cluster) -> None:
    p = await cluster.add("prefill")
    d = await cluster.add("decode")
    assert (await cluster.post(chat())).status_code == 200
    d.script.append(Hang())
    writer = await cluster.open(chat())
    await cluster.until_state("reading")
    writer.close()
    await cluster.until_state("reading", 0)
    assert cluster.leases.released == ["leasep02"]
    assert p.aborts == d.aborts == [] and cluster.services.prefill_aborts.outcomes.total() == 0


async def test_an_answer_that_is_none_is_aborted_too(cluster: Cluster) -> None:
    """It may have named a lease. The same P is asked again, once the abort is over."""
    p = await cluster.add("prefill")
    await cluster.add("decode")
    p.script.append(HalfAnswer(spoil=b"{}"))
    assert (await cluster.post(chat())).status_code == 200
    assert len(p.bodies) == 2 and p.aborts == p.lease_owners[:1]
    cluster.check_idle()


async def test_other_engines_are_not_called(cluster: Cluster) -> None:
    p = await cluster.add("prefill", ours=False)
    await cluster.add("decode", ours=False)
    p.script.append(Hang())
    writer = await cluster.open(chat())
    await eventually(lambda: len(p.bodies) == 1)
    writer.close()
    await eventually(lambda: p.num_disconnects == 1)
    assert p.aborts == [] and cluster.services.prefill_aborts.outcomes.total() == 0


async def test_no_exit_waits_for_it(cluster: Cluster) -> None:
    p, writer = await half_answered(cluster)
    p.abort_gate.clear()
    writer.close()
    await eventually(lambda: len(p.aborts) == 1)
    await cluster.until_state("prefilling", 0)
    assert cluster.services.metrics.outcomes["aborted", "client_gone"] == 1
    assert cluster.services.prefill_aborts.outcomes.total() == 0
    p.abort_gate.set()
    await until_told(cluster, p)


async def test_a_refused_abort_is_counted(cluster: Cluster) -> None:
    p, writer = await half_answered(cluster)
    p.abort_status = 401
    writer.close()
    await eventually(lambda: cluster.services.prefill_aborts.outcomes["failed"] == 1)
    assert cluster.services.metrics.outcomes == {("aborted", "client_gone"): 1}


class TestShortPrefillTimeout:
    @pytest.fixture
    def settings(self) -> RouterSettings:
        return make_settings(prefill_timeout_s=1)

    async def test_the_next_attempt_on_the_same_p_waits_for_the_abort_of_the_last(self, cluster: Cluster) -> None:
        """Both have one request id, so an abort that comes late would end the wrong one."""
        p = await cluster.add("prefill")
        await cluster.add("decode")
        p.abort_gate.clear()
        p.script.append(HalfAnswer())
        request = asyncio.create_task(cluster.post(chat()))
        await eventually(lambda: len(p.aborts) == 1)
        await cluster.until_state("queued")
        assert len(p.bodies) == 1
        p.abort_gate.set()
        assert (await request).status_code == 200
        assert len(p.bodies) == 2
        cluster.check_idle()

    async def test_another_p_is_asked_at_once(self, cluster: Cluster) -> None:
        p1, p2, _ = [await cluster.add(role) for role in ("prefill", "prefill", "decode")]
        for p in (p1, p2):
            p.abort_gate.clear()
            p.script.append(HalfAnswer())
        request = asyncio.create_task(cluster.post(chat()))
        await eventually(lambda: len(p1.bodies) == len(p2.bodies) == 1)
        for p in (p1, p2):
            p.abort_gate.set()
        assert (await request).status_code == 200
        cluster.check_idle()


class TestToken:
    @pytest.fixture
    def settings(self) -> RouterSettings:
        return make_settings(internal_token=SECRET)

    async def test_the_call_carries_the_internal_token(self, cluster: Cluster) -> None:
        p, writer = await half_answered(cluster)
        p.prove = partial(worker_proof, hello_key(SECRET), cluster._status(p).record)
        writer.close()
        await until_told(cluster, p)
        assert p.abort_headers[0]["authorization"] == f"Bearer {SECRET}"

    async def test_who_does_not_prove_that_it_knows_the_token_is_not_shown_it(self, cluster: Cluster) -> None:
        p, writer = await half_answered(cluster)
        writer.close()
        await eventually(lambda: cluster.services.prefill_aborts.outcomes["failed"] == 1)
        assert (p.num_proofs, p.abort_headers) == (1, [])


class Unreachable:
    """An ``Upstream`` to nowhere; ``gate`` unset holds its calls up."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.num_calls = 0

    async def request(self, *args: Any) -> Any:
        self.num_calls += 1
        await self.gate.wait()
        raise ConnectError("nobody there")

    async def close(self) -> None:
        self.gate.set()


async def test_errors_are_counted_and_the_number_of_aborts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_aborts, "MAX_ABORTS", 2)
    upstream = Unreachable()
    aborts = PrefillAborts(InternalCalls(upstream))
    for request_id in ("a", "b", "b", "c"):
        aborts.start(P, request_id)
    assert aborts.under_way("http://p", "b") is not None and aborts.under_way("http://q", "b") is None
    upstream.gate.set()
    await aborts.close()
    assert upstream.num_calls == 2
    assert aborts.outcomes == {"aborted": 0, "unknown": 0, "failed": 2, "skipped": 1}
    assert aborts.under_way("http://p", "b") is None


async def test_many_wait_for_their_turn_and_hold_up_no_other_p(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_aborts, "CALLS_AT_ONCE", 2)
    upstream = Unreachable()
    aborts = PrefillAborts(InternalCalls(upstream))
    for number in range(100):
        aborts.start(P, f"{number}")
    await eventually(lambda: upstream.num_calls == 2)
    aborts.start(Q, "0")
    await eventually(lambda: upstream.num_calls == 3)
    last = aborts.under_way("http://p", "99")
    assert last is not None and not last.done()
    upstream.gate.set()
    await last
    await aborts.close()
    assert aborts.outcomes == {"aborted": 0, "unknown": 0, "failed": 101, "skipped": 0}
    assert "0 not over" in repr(aborts) and not aborts._lines


async def test_one_whose_turn_comes_too_late_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease has expired by then, and whoever waits for the end of the abort goes on."""
    monkeypatch.setattr(prefill_aborts, "CALLS_AT_ONCE", 1)
    monkeypatch.setattr(prefill_aborts, "MAX_WAIT_S", 0.01)
    monkeypatch.setattr(prefill_aborts, "CALL_TIMEOUT_S", 0.05)
    aborts = PrefillAborts(InternalCalls(Unreachable()))
    for request_id in ("a", "b"):
        aborts.start(P, request_id)
    late = aborts.under_way("http://p", "b")
    assert late is not None
    await late
    assert aborts.outcomes == {"aborted": 0, "unknown": 0, "failed": 1, "skipped": 1}
    await aborts.close()


async def test_who_waits_for_an_abort_goes_on_when_the_router_stops() -> None:
    aborts = PrefillAborts(InternalCalls(Unreachable()))
    for number in range(prefill_aborts.CALLS_AT_ONCE + 1):
        aborts.start(P, f"{number}")
    ends = [aborts.under_way("http://p", "0"), aborts.under_way("http://p", f"{prefill_aborts.CALLS_AT_ONCE}")]
    closing = asyncio.create_task(aborts.close())
    await asyncio.sleep(0)
    closing.cancel()
    for end in ends:
        assert end is not None
        await end
    with pytest.raises(asyncio.CancelledError):
        await closing
    await eventually(lambda: not aborts._tasks)
    assert aborts.outcomes.total() == prefill_aborts.CALLS_AT_ONCE + 1


async def test_closing_takes_no_longer_than_a_call_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_aborts, "CALL_TIMEOUT_S", 0.01)
    aborts = PrefillAborts(InternalCalls(Unreachable()))
    aborts.start(P, "a")
    await aborts.close()
    assert aborts.outcomes["failed"] == 1
