"""P is missing from the registry: it is asked what it holds, and only what it does not hold is prefilled again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio

from baton_serve.core.protocol.id_syntax import MAX_ID_CHARS
from baton_serve.core.protocol.leases_at_p import Held
from baton_serve.router.pool import Worker
from baton_serve.router.upstream import internal_calls, missing_engines
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.stub_workers import Raw, StubWorker

if TYPE_CHECKING:
    import httpx


class Missing:
    """A P that has prefilled requests, which wait for room on a D."""

    def __init__(self, cluster: Cluster, p: StubWorker, d: Worker) -> None:
        self.cluster = cluster
        self.p = p
        self._d = d
        self._asked: list[asyncio.Task[httpx.Response]] = []

    async def hold(self, count: int) -> None:
        """So many requests are held, and P has gone missing since; nobody has noticed yet."""
        self._asked = [asyncio.create_task(self.cluster.post(chat())) for _ in range(count)]
        await self.cluster.until_state("held", count)
        self.cluster.workers.remove(self.p)

    async def returns(self) -> None:
        """P announces itself again."""
        self.cluster.workers.append(self.p)
        self.cluster.announce()

    async def until_nobody_asks(self) -> None:
        await eventually(lambda: repr(self.cluster.missing_engines) == "<MissingEngines none>")

    async def end(self) -> None:
        """D has room: all are answered, and nothing is left."""
        self.cluster.pool.take_back(self._d)
        assert [answer.status_code for answer in await asyncio.gather(*self._asked)] == [200] * len(self._asked)
        await self.until_nobody_asks()
        await eventually(self.cluster.is_idle)


@pytest_asyncio.fixture
async def missing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Missing]:
    monkeypatch.setattr(missing_engines, "ASK_EVERY_S", 0.01)
    p, d = await cluster.fleet("prefill", "decode")
    p.holds = None
    full = cluster.pool.get(d.name)
    assert full is not None
    cluster.pool.leave_out(full)
    yield Missing(cluster, p, full)
    await p.stop()


async def test_prompts_that_a_missing_p_holds_are_not_prefilled_again(missing: Missing) -> None:
    await missing.hold(3)
    missing.cluster.announce()
    await eventually(lambda: len(missing.p.asked_held) >= 3)
    assert [len(lease_ids) for lease_ids in missing.p.asked_held[:3]] == [3, 3, 3]
    await missing.returns()
    await missing.until_nobody_asks()
    await missing.end()
    assert len(missing.p.bodies) == 3


async def test_prompts_that_a_missing_p_does_not_hold_are_prefilled_again(missing: Missing) -> None:
    await missing.hold(2)
    missing.p.holds = [missing.cluster.active.leases_on(missing.p.engine_id)[0]]
    other = await missing.cluster.add("prefill")
    await eventually(lambda: len(other.bodies) == 1)
    await missing.cluster.until_state("held", 2)
    await eventually(lambda: len(missing.p.asked_held[-1]) == 1)
    await missing.end()
    assert (len(missing.p.bodies), len(other.bodies)) == (2, 1)


async def test_all_prompts_of_a_p_that_is_gone_are_prefilled_again_at_once(missing: Missing) -> None:
    await missing.hold(2)
    await missing.p.stop()
    other = await missing.cluster.add("prefill")
    await eventually(lambda: len(other.bodies) == 2)
    await missing.end()


async def test_a_missing_p_is_asked_for_choices_that_take_its_blocks_later(cluster: Cluster) -> None:
    p, d = await cluster.add("prefill"), await cluster.add("decode", limit=2)
    token = b':8\ndata: {"choices":[{"index":0,"delta":{"content":" t1"}}]}\n\n'
    last = b':end\ndata: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    decoding = Raw([token, token, None, last])
    d.script.append(decoding)
    asking = asyncio.create_task(cluster.post(chat(n=3, stream=True)))
    await cluster.until_state("decoding")
    cluster.workers.remove(p)
    await cluster.add("prefill")
    assert p.asked_held == [], "no request waits with its blocks"
    decoding.go.set()
    assert (await asking).status_code == 200
    assert p.asked_held
    await eventually(cluster.is_idle)
    await p.stop()


async def test_a_missing_p_that_goes_later_is_noticed(missing: Missing) -> None:
    await missing.hold(1)
    other = await missing.cluster.add("prefill")
    await eventually(lambda: len(missing.p.asked_held) > 1)
    assert other.bodies == []
    await missing.p.stop()
    await eventually(lambda: len(other.bodies) == 1)
    await missing.end()


async def test_a_p_that_is_back_before_a_question_fails_has_lost_nothing(missing: Missing) -> None:
    await missing.hold(1)
    missing.p.held_gate.clear()
    missing.p.held_status = 500
    other = await missing.cluster.add("prefill")
    await eventually(lambda: len(missing.p.asked_held) == 1)
    await missing.returns()
    missing.p.held_gate.set()
    await missing.until_nobody_asks()
    await missing.end()
    assert (len(missing.p.bodies), len(other.bodies)) == (1, 0)


async def test_a_missing_p_that_holds_nothing_any_more_is_not_asked_again(missing: Missing) -> None:
    """Another process in its place, say."""
    await missing.hold(1)
    missing.p.holds = []
    other = await missing.cluster.add("prefill")
    await eventually(lambda: len(other.bodies) == 1)
    await missing.until_nobody_asks()
    assert len(missing.p.asked_held) == 1
    await missing.end()


async def test_a_p_that_answers_a_request_while_it_is_missing_is_asked(missing: Missing) -> None:
    hold = missing.p.hangs()
    asked = asyncio.create_task(missing.cluster.post(chat()))
    await missing.cluster.until_state("prefilling")
    missing.cluster.workers.remove(missing.p)
    other = await missing.cluster.add("prefill")
    assert missing.p.asked_held == []
    missing.p.holds = []
    hold.release.set()
    await eventually(lambda: len(other.bodies) == 1)
    assert len(missing.p.asked_held) == 1
    await missing.end()
    assert (await asked).status_code == 200


async def test_many_leases_are_asked_for_in_several_calls(missing: Missing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_engines, "NUM_AT_ONCE", 2)
    await missing.hold(5)
    missing.cluster.announce()
    await eventually(lambda: len(missing.p.asked_held) >= 6)
    assert [len(lease_ids) for lease_ids in missing.p.asked_held[:6]] == [2, 2, 1, 2, 2, 1]
    await missing.end()
    assert len(missing.p.bodies) == 5


async def test_an_engine_that_was_replaced_is_not_asked_what_it_held(missing: Missing) -> None:
    """Another engine answers at the address: what the one before held is gone, and is prefilled again there."""
    await missing.hold(1)
    worker = missing.cluster.pool.get(missing.p.name)
    assert worker is not None
    missing.cluster.pool.engine_started(worker, "new")
    await eventually(lambda: len(missing.p.bodies) == 2)
    assert missing.p.asked_held == []
    await missing.end()


def test_an_answer_to_the_most_leases_is_read_to_its_end() -> None:
    ids = ["x" * MAX_ID_CHARS] * missing_engines.NUM_AT_ONCE
    assert len(msgspec.json.encode(Held(ids))) < internal_calls.MAX_ANSWER_BYTES


async def test_closing_ends_the_questions_to_missing_engines(missing: Missing) -> None:
    await missing.hold(1)
    missing.cluster.announce()
    await eventually(lambda: len(missing.p.asked_held) > 0)
    await missing.cluster.missing_engines.close()
    assert repr(missing.cluster.missing_engines) == "<MissingEngines none>"
    await missing.end()
