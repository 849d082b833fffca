"""A prefill that is left before its answer was read: P is told by id, whoever left and why, and nobody waits for it."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from typing import Any

import pytest

from baton_serve.core.net.client.errors import ConnectError
from baton_serve.core.protocol.hello import worker_proof
from baton_serve.core.protocol.token_keys import hello_key
from baton_serve.core.protocol.worker import Role
from baton_serve.router.pool import Worker
from baton_serve.router.upstream import prefill_aborts
from baton_serve.router.upstream.internal_calls import InternalCalls
from baton_serve.router.upstream.prefill_aborts import PrefillAborts
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.stub_workers import HalfAnswer, Hang, StubWorker
from tests.kits.router.workers import new_worker

SECRET = "between-us"
P = new_worker(worker_id="p", url="http://p", role=Role.PREFILL, limit=1, internal_url="http://p")
Q = new_worker(worker_id="q", url="http://q", role=Role.PREFILL, limit=1, internal_url="http://q")


async def half_answered(cluster: Cluster) -> tuple[StubWorker, Any]:
    """A request whose P has granted a lease in an answer of which half has come."""
    p, _ = await cluster.fleet("prefill", "decode")
    p.script.append(HalfAnswer())
    writer = await cluster.open(chat(stream=True))
    await cluster.until_state("prefilling")
    (request,) = cluster.active
    await eventually(lambda: request.held.answer is not None)
    assert p.num_leases == 1
    return p, writer


async def until_told(cluster: Cluster, p: StubWorker) -> None:
    """The abort has reached P, and its lease is gone."""
    await cluster.until_state("prefilling", 0)
    await eventually(lambda: cluster.prefill_aborts.outcomes["aborted"] == 1)
    assert p.aborts == [p.headers[0]["x-request-id"]] == p.lease_owners
    await eventually(lambda: p.num_disconnects == 1)
    cluster.check_idle()


@pytest.mark.parametrize("why", ["client", "admin", "deadline", "shutdown"])
async def test_a_p_whose_answer_is_half_read_drops_its_lease(cluster: Cluster, why: str) -> None:
    p, writer = await half_answered(cluster)
    (request,) = cluster.active
    if why == "client":
        writer.close()
    elif why == "admin":
        await cluster.client.post(f"/admin/requests/{request.request_id}/abort")
    elif why == "deadline":
        request.deadline()
    else:
        cluster.server.stop()
    await until_told(cluster, p)
    assert "authorization" not in p.abort_headers[0]
    if why != "shutdown":
        page = (await cluster.client.get("/metrics")).text
        assert 'baton_router_prefill_aborts_total{outcome="aborted"} 1.0' in page


async def test_an_answer_that_was_read_is_not_aborted(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    assert (await cluster.post(chat())).status_code == 200
    d.script.append(Hang())
    writer = await cluster.open(chat())
    await cluster.until_state("reading")
    writer.close()
    await cluster.until_state("reading", 0)
    assert cluster.leases.released == ["leasep02"]
    assert p.aborts == d.aborts == [] and cluster.prefill_aborts.outcomes.total() == 0


async def test_an_answer_that_is_none_is_aborted_too(cluster: Cluster) -> None:
    """It may have named a lease. The same P is asked again, once the abort is over."""
    p, _ = await cluster.fleet("prefill", "decode")
    p.script.append(HalfAnswer(spoil=b"{}"))
    assert (await cluster.post(chat())).status_code == 200
    assert len(p.bodies) == 2 and p.aborts == p.lease_owners[:1]
    cluster.check_idle()


async def test_engines_that_are_not_ours_are_not_told_of_aborts(cluster: Cluster) -> None:
    p = await cluster.add("prefill", ours=False)
    await cluster.add("decode", ours=False)
    p.script.append(Hang())
    writer = await cluster.open(chat())
    await eventually(lambda: len(p.bodies) == 1)
    writer.close()
    await eventually(lambda: p.num_disconnects == 1)
    assert p.aborts == [] and cluster.prefill_aborts.outcomes.total() == 0


async def test_no_request_that_ends_waits_for_the_abort_of_its_prefill(cluster: Cluster) -> None:
    p, writer = await half_answered(cluster)
    p.abort_gate.clear()
    writer.close()
    await eventually(lambda: len(p.aborts) == 1)
    await cluster.until_state("prefilling", 0)
    assert cluster.metrics.outcomes["aborted", "client_gone"] == 1
    assert cluster.prefill_aborts.outcomes.total() == 0
    p.abort_gate.set()
    await until_told(cluster, p)


async def test_a_refused_abort_is_counted(cluster: Cluster) -> None:
    p, writer = await half_answered(cluster)
    p.abort_status = 401
    writer.close()
    await eventually(lambda: cluster.prefill_aborts.outcomes["failed"] == 1)
    assert cluster.metrics.outcomes == {("aborted", "client_gone"): 1}


@pytest.mark.settings(prefill_timeout_s=1)
class TestShortPrefillTimeout:
    async def test_the_next_attempt_on_the_same_p_waits_for_the_abort_of_the_last(self, cluster: Cluster) -> None:
        """Both have one request id, so an abort that comes late would end the wrong one."""
        p, _ = await cluster.fleet("prefill", "decode")
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
        p1, p2, _ = await cluster.fleet("prefill", "prefill", "decode")
        for p in (p1, p2):
            p.abort_gate.clear()
            p.script.append(HalfAnswer())
        request = asyncio.create_task(cluster.post(chat()))
        await eventually(lambda: len(p1.bodies) == len(p2.bodies) == 1)
        for p in (p1, p2):
            p.abort_gate.set()
        assert (await request).status_code == 200
        cluster.check_idle()


@pytest.mark.settings(internal_token=SECRET)
class TestToken:
    async def test_the_call_carries_the_internal_token(self, cluster: Cluster) -> None:
        p, writer = await half_answered(cluster)
        p.prove = partial(worker_proof, hello_key(SECRET), cluster._status(p).record)
        writer.close()
        await until_told(cluster, p)
        assert p.abort_headers[0]["authorization"] == f"Bearer {SECRET}"

    async def test_a_worker_that_does_not_prove_that_it_knows_the_token_is_not_shown_it(self, cluster: Cluster) -> None:
        p, writer = await half_answered(cluster)
        writer.close()
        await eventually(lambda: cluster.prefill_aborts.outcomes["failed"] == 1)
        assert (p.num_proofs, p.abort_headers) == (1, [])


class Unreachable:
    """A client that reaches nobody; ``gate`` unset holds its calls up."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error or ConnectError("nobody there")
        self.gate = asyncio.Event()
        #: What holds up the calls of an id that ends with ``slow``.
        self.slow_gate = asyncio.Event()
        #: URLs of the calls so far, and the numbers of calls under way now and at most.
        self.calls: list[str] = []
        self.num_now = self.num_most = 0

    async def request(self, _method: str, base_url: str, path: str, *_args: Any, **_kwargs: Any) -> Any:
        self.calls.append(base_url + path)
        self.num_now += 1
        self.num_most = max(self.num_most, self.num_now)
        try:
            await (self.slow_gate if path.endswith("slow") else self.gate).wait()
        finally:
            self.num_now -= 1
        raise self.error

    async def close(self) -> None:
        self.gate.set()


class Aborts:
    """Aborts over an ``Unreachable``. No task of theirs may end with an exception."""

    def __init__(self, lease_duration_s: float = 6, error: Exception | None = None) -> None:
        self.upstream = Unreachable(error)
        self.them = PrefillAborts(InternalCalls(self.upstream), lease_duration_s)
        self.failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.failures.append(context))

    def start(self, worker: Worker, *request_ids: str) -> None:
        for request_id in request_ids:
            self.them.start(worker, request_id)

    async def check_over(self, **outcomes: int) -> None:
        """Nothing is left, and this is how all ended."""
        await eventually(lambda: not self.them._tasks)
        gc.collect()  # tells of exceptions that nobody has looked at
        assert (self.failures, len(self.them), self.them._queues) == ([], 0, {})
        assert self.them.outcomes == {"aborted": 0, "unknown": 0, "failed": 0, "skipped": 0, **outcomes}


async def test_errors_are_counted_and_the_number_of_aborts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_aborts, "MAX_ABORTS", 2)
    aborts = Aborts()
    aborts.start(P, "a", "b", "b", "c")
    aborts.start(Q, "a")
    assert len(aborts.them) == 3, "the bound is that of one worker"
    aborts.upstream.gate.set()
    await aborts.check_over(failed=3, skipped=1)
    assert len(aborts.upstream.calls) == 3


async def test_many_aborts_wait_for_their_turn_and_hold_up_no_other_p(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_aborts, "CALLS_AT_ONCE", 2)
    aborts = Aborts()
    aborts.start(P, *map(str, range(100)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert aborts.upstream.num_now == 2
    aborts.start(Q, "0")
    for _ in range(10):
        await asyncio.sleep(0)
    assert aborts.upstream.num_now == 3
    aborts.upstream.gate.set()
    await aborts.check_over(failed=101)
    assert aborts.upstream.num_most == 3
    assert [url for url in aborts.upstream.calls if "//q" not in url] == [
        f"http://p/internal/abort/{number}" for number in range(100)
    ]
    aborts.start(P, "0")
    await aborts.check_over(failed=102)


async def test_an_abort_that_somebody_waits_for_is_made_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_aborts, "CALLS_AT_ONCE", 1)
    aborts = Aborts()
    aborts.start(P, "a", "b", "c")
    await eventually(lambda: aborts.upstream.num_now == 1)
    over = aborts.them.hasten("http://p", "c")
    assert over is not None and over is aborts.them.hasten("http://p", "c")
    assert aborts.them.hasten("http://q", "c") is None and aborts.them.hasten("http://p", "x") is None
    await eventually(lambda: aborts.upstream.num_now == 2)
    assert [url[-1] for url in aborts.upstream.calls] == ["a", "c"]
    aborts.upstream.gate.set()
    await over
    await aborts.check_over(failed=3)
    assert [url[-1] for url in aborts.upstream.calls] == ["a", "c", "b"]
    assert aborts.them.hasten("http://p", "c") is None


async def test_aborts_go_on_while_one_that_was_hastened_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_aborts, "CALLS_AT_ONCE", 1)
    aborts = Aborts()
    aborts.start(P, "a", "slow")
    aborts.them.hasten("http://p", "slow")
    aborts.upstream.gate.set()
    await eventually(lambda: len(aborts.them) == len(aborts.them._tasks) == 1)
    aborts.start(P, "b")
    await eventually(lambda: aborts.them.outcomes["failed"] == 2)
    aborts.upstream.slow_gate.set()
    await aborts.check_over(failed=3)


async def test_an_abort_whose_lease_has_expired_before_its_turn_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_aborts, "CALLS_AT_ONCE", 1)
    monkeypatch.setattr(prefill_aborts, "CALL_TIMEOUT_S", 0.05)
    aborts = Aborts(lease_duration_s=0.01)
    aborts.start(P, "a", "b")
    await aborts.check_over(failed=1, skipped=1)


async def test_a_bug_in_a_call_ends_no_other_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_aborts, "CALLS_AT_ONCE", 2)
    aborts = Aborts(error=RuntimeError("a bug"))
    aborts.upstream.gate.set()
    aborts.start(P, "a", "b", "c")
    await aborts.check_over(failed=3)


async def test_an_abort_goes_on_when_nobody_waits_for_it_any_more() -> None:
    aborts = Aborts()
    aborts.start(P, "a")
    over = aborts.them.hasten("http://p", "a")
    assert over is not None
    over.cancel()
    aborts.upstream.gate.set()
    await aborts.check_over(failed=1)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_closing_takes_no_longer_than_a_call_may_and_ends_all(
    monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    monkeypatch.setattr(prefill_aborts, "CALLS_AT_ONCE", 2)
    aborts = Aborts()
    aborts.start(P, "a", "b", "c", "d")
    over = aborts.them.hasten("http://p", "d")
    assert over is not None
    await eventually(lambda: aborts.upstream.num_now == 3)
    monkeypatch.setattr(prefill_aborts, "CALL_TIMEOUT_S", 600 if is_cancelled else 0.01)
    closing = asyncio.create_task(aborts.them.close())
    await asyncio.sleep(0)
    aborts.start(P, "late")
    if is_cancelled:
        closing.cancel()
    async with asyncio.timeout(10):
        await over
        await asyncio.wait({closing})
    assert closing.cancelled() == is_cancelled
    await aborts.check_over(failed=3, skipped=2)
    aborts.start(P, "after")
    await aborts.check_over(failed=3, skipped=3)
    assert (aborts.upstream.num_now, len(aborts.upstream.calls)) == (0, 3)
