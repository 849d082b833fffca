"""However a request ends, its record and its body are freed by counting alone.

The collector of a router runs rarely. What it has to free piles up until then: 30 MB for each long prompt.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any, NamedTuple

import pytest

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.core.net.served.body import BodyBudget
from baton_serve.router.dialects.reply import DialectReply, PassedReply
from baton_serve.router.request.attempts import Attempts
from baton_serve.router.request.bodies import ClientBody
from baton_serve.router.request.choices.reply import ChoiceReply
from baton_serve.router.request.choices.whole import WholeRequest
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.request.exchange import Exchange
from baton_serve.router.request.failure_table import Failure, Leg
from baton_serve.router.request.reply import ClientReply
from tests.kits.router.cluster import Cluster, eventually
from tests.kits.router.stub_workers import HalfAnswer, Hang, Raw, Refuse, Reset, StreamThen, StubWorker
from tests.kits.survivors import without_collector

KINDS = (
    Exchange,
    WholeRequest,
    ClientBody,
    ClientRequest,
    Attempts,
    ClientReply,
    PassedReply,
    DialectReply,
    ChoiceReply,
    HttpAnswer,
)
#: Seconds until a worker or a place has not come.
SOON_S = 0.15
TOO_LONG = {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}}


class Asked(NamedTuple):
    """A request in one of the dialects."""

    path: str
    body: dict[str, Any]

    def __str__(self) -> str:
        extra = "".join(f" {name}" for name in ("stream", "n") if name in self.body)
        return self.path + extra


def asked(path: str, **more: Any) -> Asked:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    said = {
        "/v1/completions": {"prompt": "hi"},
        "/v1/responses": {"input": "hi"},
    }.get(path, {"messages": [{"role": "user", "content": "hi"}]})
    return Asked(path, {"model": "m", limit: 4, **said, **more})


PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
WHOLE = [asked(path) for path in PATHS]
STREAMED = [asked(path, stream=True) for path in PATHS]
SEVERAL = [asked(path, n=2, **more) for path in PATHS[:2] for more in ({}, {"stream": True})]
EVERY = [*WHOLE, *STREAMED, *SEVERAL]
#: One of each kind.
CHATS = [WHOLE[0], STREAMED[0], SEVERAL[1]]
pytestmark = pytest.mark.settings(
    retry_budget_floor_per_s=1000,
    request_timeout_s=5,
    breaker_failures=1000,
    held_timeout_s=SOON_S,
    prefill_timeout_s=SOON_S,
    first_byte_timeout_s=SOON_S,
    token_timeout_s=SOON_S,
)


def recover(cluster: Cluster) -> None:
    """Every worker counts as healthy, and does as usual."""
    for worker in cluster.pool:
        worker.standing.healthy = True
        worker.changed()
    for stub in cluster.workers:
        stub.script.clear()
        stub.health_gate.set()


@asynccontextmanager
async def all_freed(cluster: Cluster) -> AsyncIterator[None]:
    """Nothing is left at the end. Calls that are under way may end first."""
    with without_collector(KINDS) as survivors:
        yield
        await eventually(lambda: cluster.is_idle() and not cluster.prefill_aborts)
        await cluster.probes.close()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not survivors.count()
        assert cluster.body_budget.used_bytes == 0


FAILURES: dict[Failure, list[Any]] = {
    Failure.NOT_TAKEN: [Refuse(503, {"error": {"message": "dead", "code": "engine_gone"}})],
    Failure.DIED: [Reset(), Reset(b"HTTP/1.1 200 OK\r\n"), Refuse(503, {"error": {"code": "engine_dead"}})],
    Failure.SILENT: [Hang(), HalfAnswer()],
    Failure.ERROR: [Refuse(500, {"error": {"message": "broken"}}), Refuse(401, {}), Refuse(429, {})],
    Failure.ABORTED: [Refuse(499, {"error": {"message": "aborted", "code": "aborted"}})],
    Failure.READ_FAILED: [Refuse(502, {"error": {"message": "no", "code": "kv_read_failed"}})],
}
#: What takes seconds to be given up.
SLOW = (Failure.SILENT, Failure.ABORTED, Failure.NOT_TAKEN)
#: More often than a leg is tried.
MANY = 6


async def ask(cluster: Cluster, one: Asked) -> int:
    return (await cluster.post(one.body, one.path)).status_code


@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE, Leg.ALONE])
async def test_a_request_is_freed_when_one_of_its_legs_fails(cluster: Cluster, leg: Leg) -> None:
    """In each way, once and as often as it is tried; whatever the table says is next."""
    roles = ("prefill", "decode") if leg is Leg.PREFILL else ("decode", "prefill") if leg is Leg.DECODE else ("decode",)
    first, second, *_ = [await cluster.add(role) for role in (roles[0], *roles)]
    async with all_freed(cluster):
        for failure, acts in FAILURES.items():
            for one in CHATS if failure in SLOW else EVERY:
                await fail(cluster, one, [first], acts[0])
            for one, act, failing in product(CHATS, acts, ([first], [first, second])):
                await fail(cluster, one, failing, act)


async def fail(cluster: Cluster, one: Asked, workers: list[StubWorker], act: Any) -> None:
    """Ask; the first of the workers fails once, or both do as often as they are asked."""
    for worker in workers:
        worker.script.extend([act] * (1 if len(workers) == 1 else MANY))
        if isinstance(act, Hang):
            worker.health_gate.clear()
    await ask(cluster, one)
    recover(cluster)


async def test_a_request_is_freed_when_its_stream_breaks(cluster: Cluster) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    async with all_freed(cluster):
        for one, then, times in product([*STREAMED, SEVERAL[1]], ("die", "error", "stop", "hang"), (1, MANY)):
            act = StreamThen(1, then)
            act.go.set()
            d.script.extend([act] * times)
            await ask(cluster, one)
            recover(cluster)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_request_is_freed_when_a_worker_refuses_it(cluster: Cluster, role: str) -> None:
    workers = {each: await cluster.add(each) for each in ("prefill", "decode")}
    async with all_freed(cluster):
        for one in EVERY:
            workers[role].script.extend([Refuse(400, TOO_LONG)] * 2)
            assert await ask(cluster, one) in (200, 400)
            recover(cluster)


async def test_a_request_is_freed_when_its_answer_is_malformed(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    async with all_freed(cluster):
        for one in EVERY:
            p.script.append(HalfAnswer(b"{"))
            d.script.extend([Raw([b"data: {]\n\n"]), Refuse(302, {})])
            await ask(cluster, one)
            recover(cluster)


async def test_a_request_is_freed_when_its_workers_cannot_be_reached(cluster: Cluster) -> None:
    workers = await cluster.fleet("prefill", "decode")
    for worker in reversed(workers):
        await worker.stop()
        async with all_freed(cluster):
            for one in EVERY:
                assert await ask(cluster, one) in (200, 503)
                recover(cluster)


@pytest.mark.parametrize("what", ["choices", "whole"])
async def test_a_request_is_freed_when_it_meets_a_bug(
    cluster: Cluster, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("baton.router"), "propagate", False)  # the test's handlers keep the frames
    await cluster.fleet("prefill", "decode")

    class Broken:
        def pick(self, workers: Any, about: Any) -> Any:
            raise KeyError("a bug in a policy")

    cluster.legs.pick_decode = Broken()
    async with all_freed(cluster):
        for one in SEVERAL if what == "choices" else [*WHOLE, *STREAMED]:
            await ask(cluster, one)
        assert any(reason == "internal_error" for _, reason in cluster.metrics.outcomes)
        cluster.metrics.outcomes.clear()


@pytest.mark.settings(
    max_body_bytes=4096, max_bodies_bytes=8192, max_requests=1, api_keys=["right"], body_timeout_s=SOON_S
)
class TestRefused:
    async def test_a_request_is_freed_when_it_is_refused_before_it_begins(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        right = {"authorization": "Bearer right", "content-type": "application/json"}
        refusals: dict[int, list[tuple[dict[str, Any], dict[str, str]]]] = {
            400: [
                ({"content": b"{"}, {}),
                ({"json": {"model": "m", "stream": 1}}, {}),
                ({}, {"x-request-timeout": "0"}),
            ],
            401: [({}, {"authorization": "Bearer wrong"})],
            404: [({"json": {"model": "other", "max_tokens": 1, "messages": [], "prompt": "", "input": ""}}, {})],
            413: [({"content": b" " * 5000}, {})],
            415: [({}, {"content-encoding": "gzip"})],
        }
        async with all_freed(cluster):
            for one, (status, tries) in product(WHOLE, refusals.items()):
                for sent, headers in tries:
                    answer = await cluster.client.post(
                        one.path, **(sent or {"json": one.body}), headers=right | headers
                    )
                    assert answer.status_code in (status, 400), (one.path, sent, answer.text)

    async def test_a_request_is_freed_when_there_is_no_worker_or_no_room(self, cluster: Cluster) -> None:
        right = {"authorization": "Bearer right"}
        async with all_freed(cluster):
            for one in EVERY:
                assert (await cluster.post(one.body, one.path, headers=right)).status_code == 503
        _, d = await cluster.fleet("prefill", "decode")
        hang = d.hangs()
        running = asyncio.create_task(cluster.post(WHOLE[0].body, headers=right))
        await eventually(lambda: len(d.bodies) == 1)
        with without_collector(KINDS) as survivors:
            for one in EVERY:
                assert (await cluster.post(one.body, one.path, headers=right)).status_code == 429
            assert not survivors.count()
        hang.release.set()
        await running

    async def test_a_request_is_freed_when_its_body_does_not_come_whole(self, cluster: Cluster) -> None:
        async with all_freed(cluster):
            for leaves in (True, False):
                reader, writer = await cluster.connect()
                head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer right\r\n"
                writer.write(head + b"content-type: application/json\r\ncontent-length: 3000\r\n\r\n" + b" " * 1000)
                await eventually(lambda: cluster.body_budget.used_bytes == 1000)
                if not leaves:
                    assert b" 408 " in await reader.readline()
                writer.close()
                await eventually(lambda: cluster.body_budget.used_bytes == 0)


@pytest.mark.interpreted
async def test_a_body_counts_until_it_is_freed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [await cluster.add("prefill"), await cluster.add("decode")]
    left: list[Counter[str]] = []
    give_back = BodyBudget.give_back
    with without_collector((ClientBody, Exchange, WholeRequest)) as survivors:

        def noted(budget: BodyBudget, num_bytes: int) -> None:
            left.append(survivors.count())
            give_back(budget, num_bytes)

        monkeypatch.setattr(BodyBudget, "give_back", noted)
        for one in EVERY:
            await ask(cluster, one)
            workers[0].script.append(Refuse(400, TOO_LONG))
            await ask(cluster, one)
            await ask(cluster, Asked(one.path, {**one.body, "stream": 1}))
    assert left == [Counter()] * len(left) and len(left) == 3 * len(EVERY)


@pytest.mark.interpreted
@pytest.mark.parametrize("where", ["front.worker_calls.parse_body", "steps.run.Runner.run"])
async def test_no_memory_is_no_fault_of_the_client(
    cluster: Cluster, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_memory(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(f"baton_serve.router.{where}", no_memory)
    await cluster.add("both")
    async with all_freed(cluster):
        answer = await cluster.post(WHOLE[0].body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "out_of_memory")
    assert answer.headers["retry-after"] == "1"
    assert "found no memory" in caplog.text


STATES = ("queued", "prefilling", "held", "reading", "decoding")
HOW = ("left", "abort", "deadline", "no room", "blocks lost")


async def end(cluster: Cluster, how: str, writer: asyncio.StreamWriter) -> None:
    if how == "left":
        writer.close()
    elif how == "abort":
        await cluster.client.post("/admin/abort", json={"all": True})
    elif how == "deadline":
        for request in cluster.active:
            request.deadline()
    elif how == "blocks lost":
        for on_over in list(cluster.leases.tracked.values()):
            on_over(LeaseState.UNKNOWN)
        (d1,) = (worker for worker in cluster.pool if worker.worker_id == "d1")
        d1.usage.full_at = None
        cluster.pool.room_changed()


@pytest.mark.settings(retry_budget_floor_per_s=1000, breaker_failures=1000, held_timeout_s=0.5)
@pytest.mark.parametrize("state", STATES)
async def test_a_request_is_freed_in_whatever_state_it_ends(cluster: Cluster, state: str) -> None:
    """By the client, an operator, its deadline, too long a wait for room, or the loss of its blocks."""
    p, d = await cluster.fleet("prefill", "decode")
    limits = {worker.worker_id: worker for worker in cluster.pool}
    limits["d1"].usage.heard_s = math.inf  # its report never gets old, and an old one says nothing of room
    async with all_freed(cluster):
        for one, how in product(STREAMED if state == "decoding" else EVERY, HOW if state == "held" else HOW[:3]):
            limits["p0"].usage.limit = 0 if state == "queued" else 8
            limits["d1"].usage.full_at = 0 if state == "held" else None
            if state in ("prefilling", "reading"):
                (p if state == "prefilling" else d).script.extend([Hang()] * 2)
            elif state == "decoding":
                d.script.append(StreamThen(2, "hang"))
            writer = await cluster.open(one.body, one.path)
            num = one.body.get("n", 1)
            if "n" in one.body and state == "prefilling":
                num = 1
            await eventually(lambda num=num: cluster.active.count()[state] >= num, f"{one} {state}")
            await end(cluster, how, writer)
            await eventually(lambda: not len(cluster.active))
            writer.close()
            recover(cluster)
