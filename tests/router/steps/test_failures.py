"""What happens when workers fail: who is tried next, with which blocks, and what the client is told."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.core.net.client.http_client import STALE_S
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.router import pool as workers
from baton_serve.router.pool.breaker import BreakerState
from baton_serve.router.pool.liveness import LOOKS
from tests.kits.router.cluster import Cluster, chat, events, eventually, spoken
from tests.kits.router.stub_workers import FIRST_TOKEN, Hang, Refuse, Reset, StreamThen, StubWorker, word

WHOLE = "".join(map(word, range(4)))
BROKEN = {"error": {"message": "broken", "type": "server_error", "code": "oops"}}
FAILURES = [Refuse(500, BROKEN), Refuse(503, BROKEN), Refuse(429, BROKEN), Reset(), Reset(b"HTTP/1.1 200 OK\r\ncon")]
# A request may kill as many workers as it likes: how many is tested elsewhere.
pytestmark = pytest.mark.settings(max_worker_deaths=16)


@pytest.mark.parametrize("failure", FAILURES, ids=["500", "503", "429", "reset", "reset in headers"])
@pytest.mark.parametrize("stream", [False, True])
async def test_another_d_reads_the_same_blocks(cluster: Cluster, failure: Any, stream: bool) -> None:
    p, d1, d2 = await cluster.fleet("prefill", "decode", "decode")
    d1.script.append(failure)
    d2.script.append(failure)
    d1.script.append(None)
    response = await cluster.post(chat(stream=stream))
    text = spoken(response.text) if stream else response.json()["choices"][0]["message"]["content"]
    assert text == WHOLE
    assert len(p.bodies) == 1, "prefilled once"
    blocks = [body["kv_transfer_params"] for body in d1.bodies + d2.bodies]
    assert len(blocks) == 3
    assert all(block == blocks[0] for block in blocks)
    assert cluster.metrics.retries["decode"] == 2
    cluster.check_idle()


@pytest.mark.parametrize("failure", FAILURES, ids=["500", "503", "429", "reset", "reset in headers"])
async def test_another_p_is_asked_when_one_fails(cluster: Cluster, failure: Any) -> None:
    p1, p2, _ = await cluster.fleet("prefill", "prefill", "decode")
    p1.script.append(failure)
    p2.script.append(failure)
    response = await cluster.post(chat())
    assert response.json()["choices"][0]["message"]["content"] == WHOLE
    assert sorted([len(p1.bodies), len(p2.bodies)]) == [1, 2]
    cluster.check_idle()


UNREADABLE = Refuse(502, {"error": {"message": "broken", "type": "server_error", "code": "kv_read_failed"}})


@pytest.mark.parametrize("failure", [Refuse(500, BROKEN), UNREADABLE], ids=["500", "unreadable"])
@pytest.mark.parametrize("role", ["prefill", "decode", "both"])
async def test_the_attempts_of_a_request_are_bounded(cluster: Cluster, role: str, failure: Refuse) -> None:
    if role == "both":
        workers = await cluster.fleet("both", "both")
    else:
        p, d = await cluster.fleet("prefill", "decode")
        workers = [p if role == "prefill" else d]
    for worker in workers:
        worker.script.extend([failure] * 20)
    response = await cluster.post(chat())
    assert response.status_code == failure.status
    assert response.json()["error"]["message"] == "broken"
    num_rounds = 3 if role == "decode" and failure is UNREADABLE else 1
    num_each_round = 2 if role == "decode" and failure is UNREADABLE else 3
    assert sum(len(worker.bodies) for worker in workers) == num_rounds * num_each_round
    cluster.check_idle()


async def test_another_worker_that_does_both_is_tried(cluster: Cluster) -> None:
    one, two = await cluster.fleet("both", "both")
    for worker in (one, two):
        worker.script.append(Refuse(500, BROKEN))
    one.script.append(Refuse(500, BROKEN))
    two.script.append(Refuse(500, BROKEN))
    assert (await cluster.post(chat())).status_code == 500
    assert sorted([len(one.bodies), len(two.bodies)]) == [1, 2], "who failed is left out while another can be reached"


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refusal_goes_to_the_client_as_it_is(cluster: Cluster, role: str, status: int) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    error = {"message": "too long", "type": "invalid_request_error", "param": "messages", "code": "context_length"}
    (p if role == "prefill" else d).script.append(Refuse(status, {"error": error}))
    response = await cluster.post(chat())
    named = {"request_id": response.headers["x-request-id"]}
    assert (response.status_code, response.json()) == (status, {"error": error} | named)
    assert len(p.bodies) == 1
    cluster.check_idle()


async def test_a_refusal_by_d_after_the_first_token_is_an_error_event(cluster: Cluster) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    d.script.append(Refuse(400, BROKEN))
    response = await cluster.post(chat(stream=True))
    assert response.status_code == 200
    seen = events(response.text)
    assert seen[-1]["error"]["message"] == "broken"
    assert seen[-1]["request_id"] == response.headers["x-request-id"]
    assert spoken(response.text) == word(0)
    cluster.check_idle()


async def break_off(cluster: Cluster, d: StubWorker, then: str) -> str:
    """A stream that breaks after D's first token has reached the client."""
    broken = StreamThen(1, then)
    d.script.append(broken)
    return await cluster.streamed(chat(stream=True), broken, after=word(1))


@pytest.mark.parametrize("then", ["die", "stop"])
async def test_a_stream_ends_with_an_error_when_its_d_dies_and_names_no_tokens(cluster: Cluster, then: str) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    d.names_tokens = False
    text = await break_off(cluster, d, then)
    seen = events(text)
    assert spoken(text) == word(0) + word(1)
    assert seen[-1]["error"]["code"] == "upstream_error"
    assert cluster.metrics.outcomes["failed", "upstream_error"] == 1
    cluster.check_idle()


async def test_an_error_event_of_d_reaches_the_client_once_and_the_log(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    d.names_tokens = False
    with caplog.at_level(logging.INFO, "baton.router"):
        seen = events(await break_off(cluster, d, "error"))
    (line,) = [record.getMessage() for record in caplog.records if " failed after " in record.getMessage()]
    assert line.endswith("'broke'")
    assert [event["error"]["message"] for event in seen if "error" in event] == ["broke"]
    assert len(cluster.metrics.outcomes) == 1
    assert next(iter(cluster.metrics.outcomes))[0] == "failed"


async def test_an_engine_that_fails_after_its_role_chunk_is_no_200(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode", ours=False)
    d.script.extend([StreamThen(0, "error")] * 3)
    response = await cluster.post(chat(stream=True))
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "broke"
    assert len(p.bodies) == 3, "blocks without a lease are gone after a failed D"


async def test_other_engines_blocks_survive_a_refused_connection_only(cluster: Cluster) -> None:
    p, d1, d2 = await cluster.fleet("prefill", "decode", "decode", ours=False)
    await d1.stop()
    for _ in range(2):
        assert (await cluster.post(chat())).status_code == 200
    assert (len(p.bodies), len(d2.bodies)) == (2, 2)


async def test_a_d_that_cannot_be_reached_is_left_out_until_it_answers(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    port = d.port
    await d.stop()
    await cluster.open(chat())
    await eventually(lambda: not next(w for w in cluster.pool if w.worker_id == "d1").standing.healthy)
    await cluster.until_state("held")
    await d.start(port)
    await cluster.until_state("held", 0)
    await eventually(lambda: cluster.metrics.outcomes["done", ""] == 1)
    assert (len(p.bodies), len(d.bodies)) == (1, 1)


async def test_a_request_that_waits_hears_that_the_last_other_d_is_gone(cluster: Cluster) -> None:
    """It failed on one D and waits for the other; when that one goes too, the first is better than nobody."""
    _, d1, _ = await cluster.fleet("prefill", "decode", "decode")
    other = next(worker for worker in cluster.pool if worker.worker_id == "d2")
    other.usage.limit = 0
    d1.script.append(Refuse(500, BROKEN))
    request = asyncio.create_task(cluster.post(chat()))
    await eventually(lambda: len(d1.bodies) == 1)
    await cluster.until_state("held")
    cluster.pool.unreachable(other)
    assert (await request).status_code == 200
    assert len(d1.bodies) == 2


async def test_nobody_is_sent_to_a_worker_just_found_unreachable(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    await d.stop()
    worker = next(worker for worker in cluster.pool if worker.worker_id == "d1")
    worker.usage.limit = 0
    writers = [await cluster.open(chat()) for _ in range(4)]
    await cluster.until_state("held", 4)
    worker.usage.limit = 1
    cluster.pool.room_changed()
    await eventually(lambda: not worker.standing.healthy)
    await cluster.until_state("held", 4)
    assert cluster.metrics.retries["decode"] == 1, "the place that became free was on a worker already left out"
    for writer in writers:
        writer.close()
    await cluster.until_state("held", 0)
    assert len(p.bodies) == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_when_no_p_can_be_reached_d_prefills(cluster: Cluster, stream: bool) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    await p.stop()
    response = await cluster.post(chat(stream=stream))
    text = spoken(response.text) if stream else response.json()["choices"][0]["message"]["content"]
    assert (text, response.text.count('"role"')) == (WHOLE, 1)
    assert "kv_transfer_params" not in d.bodies[0]
    assert cluster.metrics.skipped_prefill["unreachable"] == 1
    cluster.check_idle()


async def test_a_request_that_waits_for_p_hears_that_there_is_none(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    worker = next(worker for worker in cluster.pool if worker.worker_id == "p0")
    worker.usage.limit = 0
    request = asyncio.create_task(cluster.post(chat(stream=True)))
    await cluster.until_state("queued")
    cluster.pool.unreachable(worker)
    assert spoken((await request).text) == WHOLE
    assert (len(p.bodies), len(d.bodies)) == (0, 1)
    cluster.check_idle()


async def test_a_request_is_a_503_when_no_worker_can_be_reached(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    cluster.pool.unreachable(next(worker for worker in cluster.pool if worker.url == d.url))
    await p.stop()
    await d.stop()
    response = await cluster.post(chat())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "worker_unreachable"
    cluster.check_idle()


async def test_a_load_from_before_redis_went_away_does_not_stay(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LOAD_TTL_S", 0.05)
    await cluster.fleet("prefill", "decode")
    worker = next(worker for worker in cluster.pool if worker.worker_id == "d1")
    worker.report(WorkerLoad(running=worker.usage.limit), time.monotonic())  # heard after they had all ended
    assert (await cluster.post(chat())).status_code == 200, "nobody else says that there is room"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_connection_that_breaks_while_d_computes_is_an_attempt(cluster: Cluster, stream: bool) -> None:
    """On a kept connection too: what D has of it is not silently sent again."""
    _, d = await cluster.fleet("prefill", "decode")
    assert (await cluster.post(chat())).status_code == 200
    hang = d.hangs()
    request = asyncio.create_task(cluster.post(chat(stream=stream)))
    await eventually(lambda: len(d.bodies) == 2)
    await asyncio.sleep(2 * STALE_S)  # longer than a stale one lasts
    (live,) = cluster.active
    hang.reset = True
    hang.release.set()
    assert (await request).status_code == 200
    assert (len(d.bodies), cluster.metrics.retries["decode"], len(live.attempts.dead_engines)) == (3, 1, 1)
    cluster.check_idle()


async def test_a_lease_that_is_named_twice_stays_with_the_first(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    p.only_lease = "lease-of-all"
    hang = d.hangs()
    first = asyncio.create_task(cluster.post(chat()))
    await cluster.until_state("reading")
    refused = await cluster.post(chat())
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "upstream_error")
    assert "not understood" in refused.json()["error"]["message"]
    assert cluster.leases.released == []
    assert cluster.lease_limit.holds(p.only_lease)
    hang.release.set()
    assert (await first).json()["choices"][0]["message"]["content"] == WHOLE
    assert len(cluster.lease_limit) == 0
    await cluster.prefill_aborts.close()
    cluster.check_idle()


@pytest.mark.settings(token_timeout_s=1)
class TestSilence:
    async def test_a_d_that_falls_silent_in_the_stream_is_left(self, cluster: Cluster) -> None:
        _, d = await cluster.fleet("prefill", "decode")
        d.names_tokens = False
        seen = events(await break_off(cluster, d, "hang"))
        assert (seen[-1]["error"]["code"], "in time" in seen[-1]["error"]["message"]) == ("upstream_error", True)
        await eventually(lambda: d.num_disconnects == 1)
        cluster.check_idle()

    async def test_nothing_keeps_watching_an_answer_that_is_over(self, cluster: Cluster) -> None:
        _, d = await cluster.fleet("prefill", "decode")
        d.script.append(StreamThen(1, "hang"))
        writer = await cluster.open(chat(stream=True))
        await cluster.until_state("decoding")
        (request,) = cluster.active
        answer = request.held.answer
        assert isinstance(answer, HttpAnswer)
        writer.close()
        await cluster.until_state("decoding", 0)
        assert answer._watch is None


@pytest.mark.settings(first_byte_timeout_s=1, prefill_timeout_s=1)
class TestShortTimeouts:
    async def test_a_hanging_d_is_left_for_another_one(self, cluster: Cluster) -> None:
        p, d1, d2 = await cluster.fleet("prefill", "decode", "decode")
        for d in (d1, d2):
            d.script.append(Hang())
        response = await cluster.post(chat(stream=True))
        assert spoken(response.text) == WHOLE
        assert len(p.bodies) == 1
        await eventually(lambda: d1.num_disconnects == d2.num_disconnects == 1)

    async def test_an_unstreamed_request_leaves_a_d_that_has_not_read(self, cluster: Cluster) -> None:
        p, d = await cluster.fleet("prefill", "decode")
        d.script.append(Hang())
        assert (await cluster.post(chat())).status_code == 200
        assert (len(p.bodies), len(d.bodies), d.num_disconnects) == (1, 2, 1)

    async def test_a_hanging_p_is_left_for_another_one(self, cluster: Cluster) -> None:
        p1, p2, _ = await cluster.fleet("prefill", "prefill", "decode")
        for p in (p1, p2):
            p.script.append(Hang())
        assert (await cluster.post(chat())).status_code == 200
        await eventually(lambda: p1.num_disconnects == p2.num_disconnects == 1)


@pytest.mark.settings(first_byte_timeout_s=0.2, token_timeout_s=0.6)
class TestUnstreamedSilence:
    """Nothing comes while D computes; the store tells whether it has read, and D that it lives."""

    async def hang(self, cluster: Cluster, *, answers: bool) -> tuple[Any, Any, Any, asyncio.Task[Any]]:
        """P, the D where the request hangs, the other D, the request. ``answers``: when asked whether it lives."""
        p, *two = await cluster.fleet("prefill", "decode", "decode")
        hang = Hang()
        for d in two:
            d.script.append(hang)
        request = asyncio.create_task(cluster.post(chat()))
        await cluster.until_state("reading")
        await eventually(lambda: any(d.bodies for d in two))
        asked, other = sorted(two, key=lambda d: -len(d.bodies))
        other.script.clear()
        asked.script.clear()
        if not answers:
            asked.health_gate.clear()
        asked.hang = hang
        return p, asked, other, request

    async def is_let_be(self, asked: Any, other: Any, request: asyncio.Task[Any]) -> None:
        """For twice as long as a silent one would be; then its answer is the client's."""
        await eventually(lambda: asked.num_health > 2 * LOOKS)
        assert (request.done(), len(other.bodies), asked.num_disconnects) == (False, 0, 0)
        asked.hang.release.set()
        assert (await request).json()["choices"][0]["message"]["content"] == WHOLE

    async def is_left(self, cluster: Cluster, asked: Any, other: Any, request: asyncio.Task[Any]) -> None:
        """The other one answers. Nobody has died."""
        assert (await request).json()["choices"][0]["message"]["content"] == WHOLE
        await eventually(lambda: asked.num_disconnects == 1)
        assert (len(asked.bodies), len(other.bodies)) == (1, 1)
        asked.health_gate.set()
        cluster.check_idle()

    async def test_a_d_that_has_read_and_lives_may_take_its_time(self, cluster: Cluster) -> None:
        p, asked, other, request = await self.hang(cluster, answers=True)
        cluster.leases.tracked["leasep01"](LeaseState.DONE)
        await self.is_let_be(asked, other, request)
        assert len(p.bodies) == 1

    async def test_a_d_that_has_read_and_is_silent_is_left(self, cluster: Cluster) -> None:
        """P has given up the blocks. The silent one is not asked after the second prefill either."""
        p, asked, other, request = await self.hang(cluster, answers=False)
        cluster.leases.tracked["leasep01"](LeaseState.DONE)
        await self.is_left(cluster, asked, other, request)
        assert len(p.bodies) == 2

    @pytest.mark.parametrize("end", [LeaseState.EXPIRED, LeaseState.RELEASED])
    async def test_a_d_that_lives_may_have_read_before_the_lease_ended_otherwise(
        self, cluster: Cluster, end: LeaseState
    ) -> None:
        """As after a stall of the router's renewals: the blocks were good, or D has prefilled by itself."""
        p, asked, other, request = await self.hang(cluster, answers=True)
        cluster.leases.tracked["leasep01"](end)
        await self.is_let_be(asked, other, request)
        assert len(p.bodies) == 1

    @pytest.mark.parametrize("is_over", [True, False])
    async def test_without_redis_a_d_that_lives_is_believed_to_have_read(self, cluster: Cluster, is_over: bool) -> None:
        """Until the grace is over, and afterwards."""
        _, asked, other, request = await self.hang(cluster, answers=True)
        cluster.leases.answers = False
        if is_over:
            cluster.leases.tracked["leasep01"](LeaseState.UNKNOWN)
        await self.is_let_be(asked, other, request)

    async def test_without_redis_a_silent_d_is_left_and_the_lease_serves_another(self, cluster: Cluster) -> None:
        p, asked, other, request = await self.hang(cluster, answers=False)
        cluster.leases.answers = False
        await self.is_left(cluster, asked, other, request)
        assert len(p.bodies) == 1
        assert asked.bodies[0]["kv_transfer_params"] == other.bodies[0]["kv_transfer_params"]

    async def test_a_worker_that_prefills_by_itself_is_left_when_it_is_silent(self, cluster: Cluster) -> None:
        one, two = await cluster.fleet("both", "both")
        hang = one.hangs()
        two.script.append(hang)
        for worker in (one, two):
            worker.health_gate.clear()
        request = asyncio.create_task(cluster.post(chat()))
        await eventually(lambda: bool(one.bodies or two.bodies))
        (one if two.bodies else two).script.clear()
        assert (await request).status_code == 200
        assert (len(one.bodies), len(two.bodies)) == (1, 1)


@pytest.mark.settings(max_answer_bytes=2000, breaker_failures=1)
class TestTooLarge:
    @pytest.mark.parametrize("role", ["prefill", "decode", "both"])
    async def test_an_answer_that_is_too_large_is_no_workers_fault(self, cluster: Cluster, role: str) -> None:
        roles = ["both", "both"] if role == "both" else ["prefill", "prefill", "decode", "decode"]
        fleet = await cluster.fleet(*roles)
        for worker in fleet:
            if worker.role == "prefill":
                worker.first_text = word(0) * (1000 if role == "prefill" else 1)
        response = await cluster.post(chat(max_tokens=600))
        error = response.json()["error"]
        assert (response.status_code, error["code"], "max_answer_bytes" in error["message"]) == (
            502,
            "answer_too_large",
            True,
        )
        assert sum(len(worker.bodies) for worker in fleet if worker.role == role) == 1, "not tried again"
        assert all(worker.standing.breaker.state is BreakerState.CLOSED for worker in cluster.pool)
        if role == "prefill":  # its lease was in the answer
            await eventually(lambda: sum(len(worker.aborts) for worker in fleet) == 1)
            await cluster.prefill_aborts.close()
        cluster.check_idle()

    async def test_an_error_that_is_too_large_is_that_error(self, cluster: Cluster) -> None:
        _, d = await cluster.fleet("prefill", "decode")
        d.script += [Refuse(503, {"error": {"message": "x" * 5000}}), None]
        assert (await cluster.post(chat())).status_code == 200
        assert cluster.metrics.retries["decode"] == 1


class TestLostLeases:
    async def _hold(self, cluster: Cluster) -> tuple[Any, Any]:
        p, _ = await cluster.fleet("prefill", "decode")
        worker = next(worker for worker in cluster.pool if worker.worker_id == "d1")
        worker.usage.limit = 0
        await cluster.open(chat(stream=True))
        await cluster.until_state("held")
        return p, worker

    async def _go_on(self, cluster: Cluster, worker: Any) -> str:
        worker.usage.limit = 8
        cluster.pool.room_changed()
        return (await cluster._readers[0].readuntil(b"data: [DONE]\n\n")).decode()

    async def test_an_engine_that_leaves_loses_its_blocks(self, cluster: Cluster) -> None:
        p, worker = await self._hold(cluster)
        other = await cluster.add("prefill")
        cluster.workers.remove(p)
        cluster.announce()
        await eventually(lambda: len(other.bodies) == 1)
        text = await self._go_on(cluster, worker)
        assert spoken(text.replace("\r\n", "\n")) == WHOLE
        await p.stop()

    async def test_a_held_request_is_prefilled_again_at_once_and_goes_on_after_the_first_token(
        self, cluster: Cluster
    ) -> None:
        p, worker = await self._hold(cluster)
        cluster.leases.tracked["leasep01"](LeaseState.EXPIRED)
        await eventually(lambda: len(p.bodies) == 2)
        await cluster.until_state("held")
        assert list(cluster.leases.tracked) == ["leasep02"]
        assert p.bodies[0]["seed"] == p.bodies[1]["seed"]
        assert p.bodies[1]["kv_transfer_params"] == {
            "do_remote_decode": True,
            "resume": {"token_ids": [FIRST_TOKEN], "created": 5},
        }
        text = await self._go_on(cluster, worker)
        assert spoken(text) == WHOLE, "the first token is not repeated"
        assert text.count('"role"') == 1
        await cluster.until_state("decoding", 0)
        cluster.check_idle()

    async def test_another_first_token_is_as_good_for_an_unstreamed_request(self, cluster: Cluster) -> None:
        p, _ = await cluster.fleet("prefill", "decode")
        worker = next(worker for worker in cluster.pool if worker.worker_id == "d1")
        worker.usage.limit = 0
        request = asyncio.create_task(cluster.post(chat()))
        await cluster.until_state("held")
        p.first_token += 1
        cluster.leases.tracked["leasep01"](LeaseState.EXPIRED)
        await eventually(lambda: "leasep02" in cluster.leases.tracked)
        worker.usage.limit = 8
        cluster.pool.room_changed()
        assert (await request).json()["choices"][0]["message"]["content"] == WHOLE
        cluster.check_idle()

    @pytest.mark.parametrize("shown", [True, False], ids=["shown", "part of a character"])
    @pytest.mark.parametrize("kind", ["both", "other engine"])
    async def test_a_request_may_be_prefilled_again_by_another_kind_of_worker(
        self, cluster: Cluster, kind: str, shown: bool
    ) -> None:
        """Our own goes on. Another engine cannot: if the client has seen a token, one of ours is waited for."""
        p, d = await cluster.fleet("prefill", "decode")
        p.first_text = word(0) if shown else ""
        await (cluster.fleet("both") if kind == "both" else cluster.fleet("prefill", "decode", ours=False))
        for worker in cluster.pool:
            worker.usage.limit = 8 if worker.worker_id == "p0" else 0
        await cluster.open(chat(stream=True))
        await cluster.until_state("held")
        for gone in (p, d):
            cluster.workers.remove(gone)
        for worker in cluster.pool:
            worker.usage.limit = 0 if worker.worker_id == "d1" else 8
        cluster.announce()
        if kind == "other engine" and shown:
            await cluster.until_state("queued")
            cluster.workers += [p, d]
            cluster.announce()
        text = (await cluster._readers[0].readuntil(b"\r\n0\r\n\r\n")).decode()
        first = "" if kind == "both" and not shown else word(0)
        assert spoken(text.replace("\r", "")) == first + "".join(map(word, range(1, 4)))
        assert text.count('"role"') == 1
        await cluster.until_state("decoding", 0)
        cluster.check_idle()
        for worker in (p, d):
            await worker.stop()

    async def test_a_p_that_two_d_cannot_read_from_is_left_out_of_the_next_prefill(self, cluster: Cluster) -> None:
        p1, p2, d = await cluster.fleet("prefill", "prefill", "decode")
        busy = next(worker for worker in cluster.pool if worker.url == p2.url)
        busy.report(WorkerLoad(running=2), time.monotonic())  # p1 is the first choice, whenever it may be chosen
        d.script.extend([UNREADABLE, UNREADABLE])
        response = await cluster.post(chat(stream=True))
        assert spoken(response.text) == WHOLE
        assert (len(p1.bodies), len(p2.bodies), len(d.bodies)) == (1, 1, 3)
        cluster.check_idle()


async def test_reads_that_fail_because_of_p_are_no_attempts_at_d(cluster: Cluster) -> None:
    """D's engine dies, and then P: what cannot be read is prefilled again."""
    p, d = await cluster.fleet("prefill", "decode")
    died = Refuse(500, {"error": {"message": "died", "type": "server_error", "code": "engine_dead"}})
    d.script.extend([died, UNREADABLE, UNREADABLE])
    response = await cluster.post(chat(stream=True))
    assert spoken(response.text) == WHOLE
    assert (len(p.bodies), len(d.bodies)) == (2, 4)
    assert cluster.leases.released == ["leasep01"]
    cluster.check_idle()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_with_another_internal_token_is_named_as_such(cluster: Cluster, role: str) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    (p if role == "prefill" else d).script.extend([Refuse(401, BROKEN)] * 3)
    response = await cluster.post(chat())
    assert response.status_code == 502, "it is not the client's fault"
    assert "internal token" in response.json()["error"]["message"]
