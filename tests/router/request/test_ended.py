"""The requests that ended last: what is kept of them, how many, and who is told."""

from __future__ import annotations

import sys
import weakref
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.errors import UpstreamError
from baton_serve.router.dashboard.share import MAX_ENDED
from baton_serve.router.request.ended import (
    MAX_ERROR_CHARS,
    MAX_TEXT_CHARS,
    EndedRequest,
    EndedRequests,
    ended_request,
    newest_of,
)
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.request.states import State
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.stub_workers import Hang, Refuse, StreamThen

SMALL = {State.FAILED: 3, State.ABORTED: 2, State.DONE: 1}
LONG = "long" * MAX_TEXT_CHARS
outcomes = st.sampled_from(list(SMALL))


def facts(outcome: State, name: str = "r", **rest: Any) -> RequestFacts:
    plain: dict[str, Any] = {
        "id": name,
        "client_id": None,
        "state": outcome,
        "endpoint": "/v1/completions",
        "chat": False,
        "model": "m",
        "user": "",
        "stream": False,
        "priority": 0,
        "max_new_tokens": None,
        "prefill_worker": None,
        "decode_worker": None,
        "lease_id": "",
        "lease_remaining_ms": None,
        "started_s": 0.0,
        "age_s": 0.001,
        "spent_s": {},
        "ttft_s": None,
        "answer_begun": True,
        "num_tokens": 0,
        "num_chunks": 0,
        "num_prefills": 1,
        "num_retries": 0,
        "num_migrations": 0,
        "is_migrating": False,
        "dead_engines": (),
        "last_error": None,
        "trace_id": None,
    }
    return RequestFacts(**{**plain, **rest})


def ended_of(outcome: State, name: str = "r") -> EndedRequest:
    return ended_request(facts(outcome, name), 0.0)


@given(st.lists(outcomes, max_size=30))
def test_each_outcome_keeps_its_newest_requests(order: list[State]) -> None:
    kept = EndedRequests(SMALL)
    for number, outcome in enumerate(order):
        kept.add(float(number), facts(outcome, str(number)), 0.0)
    newest = kept.newest(float(len(order)))
    for outcome, room in SMALL.items():
        wanted = [str(number) for number, each in enumerate(order) if each is outcome][-room:]
        assert [ended.id for ended in reversed(newest) if ended.outcome == outcome] == wanted
    ages_ms = [ended.ended_ms_ago for ended in newest]
    assert ages_ms == sorted(ages_ms) and len(kept) == len(newest)
    assert len(kept.newest(0.0, 1)) == len(set(order))


@pytest.mark.parametrize("which", ["error", "last_error"])
def test_an_error_is_not_kept_with_the_frames_that_it_went_through(which: str) -> None:
    kept = EndedRequests(SMALL)
    error = UpstreamError("It failed.")
    kept.add(0.0, facts(State.DONE, **{which: error}), 0.0)
    gone = weakref.ref(error)
    del error
    assert gone() is None
    assert len(kept.newest(0.0)) == 1


def test_long_names_are_not_kept() -> None:
    kept = EndedRequests(SMALL)
    before = sys.getrefcount(LONG)
    kept.add(0.0, facts(State.DONE, model=LONG, user=LONG), 0.0)
    assert sys.getrefcount(LONG) == before
    (ended,) = kept.newest(0.0)
    assert (ended.model, ended.user) == (LONG[:MAX_TEXT_CHARS],) * 2


def test_of_all_routers_the_newest_of_each_outcome_are_listed_by_age() -> None:
    """The times of day that routers tell say nothing: their clocks may be hours apart."""
    one = [replace(ended_of(State.FAILED, f"a{n}"), ended_ms_ago=2.0 * n, ended_at=9e9) for n in range(MAX_ENDED)]
    two = [replace(ended_of(State.FAILED, f"b{n}"), ended_ms_ago=2.0 * n + 1) for n in range(MAX_ENDED)]
    newest = newest_of([*one, *two], MAX_ENDED)
    assert [ended.id for ended in newest] == [f"{'ab'[n % 2]}{n // 2}" for n in range(MAX_ENDED)]


async def listed(cluster: Cluster, query: str = "") -> list[dict[str, Any]]:
    answer = await cluster.client.get(f"/admin/requests/ended{query}")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["ended"]
    return found


async def test_a_request_that_failed_says_why(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    told = "The read of P's blocks failed. " * 20
    d.script.append(Refuse(400, {"error": {"message": told, "code": "too_long"}}))
    refused = await cluster.post(chat(user="u" * 300, messages=[{"role": "user", "content": "a secret prompt"}]))
    (row,) = await listed(cluster)
    assert row["id"] == refused.headers["x-request-id"]
    assert (row["outcome"], row["ended_in"], row["status"], row["code"]) == ("failed", "reading", 400, "too_long")
    assert row["error"] == told[:MAX_ERROR_CHARS]
    assert (row["prefill_worker"], row["decode_worker"]) == (p.name, d.name)
    assert list(row["phases_ms"]) == ["queued", "prefilling", "held", "reading"]
    assert row["router"] == cluster.router_id and row["user"] == "u" * MAX_TEXT_CHARS
    assert 0 <= row["ended_ms_ago"] < 60_000 and row["total_ms"] > 0
    assert "secret" not in str(row)


async def test_requests_that_were_aborted_and_that_are_done_are_told_apart(cluster: Cluster) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    await cluster.post(chat(stream=True))
    p.script.append(Hang())
    writer = await cluster.open(chat())
    await cluster.until_state("prefilling")
    writer.close()
    await eventually(lambda: len(cluster.ended_requests) == 2)
    left, done = await listed(cluster)
    assert (left["outcome"], left["ended_in"], left["code"]) == ("aborted", "prefilling", "client_gone")
    assert (done["outcome"], done["ended_in"], done["status"], done["error"]) == ("done", None, None, None)
    assert done["num_tokens"] > 1 and done["ttft_ms"] <= done["total_ms"]
    assert [row["id"] for row in await listed(cluster, "?outcome=aborted")] == [left["id"]]
    assert (await cluster.client.get("/admin/requests/ended?outcome=lost")).status_code == 400


async def test_an_error_in_the_stream_is_a_request_that_failed_while_decoding(cluster: Cluster) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    d.error_code = 400
    broken = StreamThen(2, "error")
    d.script.append(broken)
    await cluster.open(chat(stream=True))
    await cluster.until_state("decoding")
    broken.go.set()
    await eventually(lambda: len(cluster.ended_requests) == 1)
    (row,) = await listed(cluster)
    assert (row["outcome"], row["ended_in"], row["status"]) == ("failed", "decoding", 400)


async def test_the_live_view_has_ended_requests_and_counts_refused_ones(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    await cluster.post(chat())
    await cluster.post(chat(model="nobody's"))
    board = cluster.snapshots()
    (ended,) = board.take(0.0).ended
    assert (ended.outcome, ended.model) == ("done", "m")
    number, _ = board.newest()
    board._made_s = float("-inf")
    assert board.newest()[0] == number, "that time goes by is no news"
    assert cluster.metrics.refused == {404: 1}
