"""An event that is too large is the client's own: nobody is blamed for it, and nobody computes it again."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from baton_serve.router.pool.breaker import BreakerState
from baton_serve.router.upstream.events import END, EventCutter, EventTooLarge
from tests.kits.router.cluster import Cluster, chat, events, spoken
from tests.kits.router.stub_workers import Raw, word

LIMIT = 1024
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
pytestmark = pytest.mark.settings(max_event_bytes=LIMIT, breaker_failures=1)


def token(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text.encode()


LARGE = token("x" * LIMIT)
#: What D sends after its role: the large event whole, in pieces, behind others, as last words in small events.
SENT: dict[str, list[bytes | None]] = {
    "whole": [b":8\n" + LARGE],
    "pieces": [b":8\n" + LARGE[:100], None, LARGE[100:]],
    "no end": [b":8\n" + LARGE[:-2]],
    "behind others": [b":8\n" + token(word(1)) + b":9\n" + LARGE],
    "later": [b":8\n" + token(word(1)), None, b":9\n" + LARGE],
    "later in pieces": [b":8\n" + token(word(1)), None, b":9\n" + LARGE[:100], LARGE[100:]],
    "last words": [b":8\n" + token(word(1)) + b":end\n" + token("x" * 700), None, token("x" * 700)],
}


def check_nobody_is_blamed(cluster: Cluster, fleet: list[Any]) -> None:
    assert all(worker.standing.breaker.state is BreakerState.CLOSED for worker in cluster.pool)
    assert sum(len(worker.bodies) for worker in fleet) == 1, "not computed again"
    metrics = cluster.metrics
    assert metrics.resumed.total() + metrics.retries.total() == 0
    cluster.check_idle()


@pytest.mark.parametrize("sent", SENT)
async def test_a_large_event_inside_of_a_stream_is_one_error(cluster: Cluster, sent: str) -> None:
    await cluster.add("prefill")
    fleet = [await cluster.add("decode") for _ in range(2)]
    for d in fleet:
        d.script.append(Raw(SENT[sent], then="hang"))
    acts = [d.script[0] for d in fleet]
    seen = word(1) if "later" in sent else word(0)
    text = await cluster.streamed(chat(max_tokens=20, stream=True), *acts, after=seen)
    (error,) = (event["error"] for event in events(text) if "error" in event)
    assert (error["code"], f"{LIMIT} bytes (max_event_bytes)" in error["message"]) == ("event_too_large", True)
    assert spoken(text).startswith(word(0)) and "xxx" not in text
    check_nobody_is_blamed(cluster, fleet)


@pytest.mark.parametrize("sent", ["whole", "pieces", "no end"])
async def test_a_large_event_before_the_first_byte_is_a_502(cluster: Cluster, sent: str) -> None:
    fleet = [await cluster.add("both") for _ in range(2)]
    for d in fleet:
        d.script.append(Raw([ROLE, *SENT[sent]], then="hang"))
        d.script[0].go.set()
    response = await cluster.post(chat(max_tokens=20, stream=True))
    assert (response.status_code, response.json()["error"]["code"]) == (502, "event_too_large")
    check_nobody_is_blamed(cluster, fleet)


@pytest.mark.parametrize("then", ["whole", "no end"])
async def test_a_large_event_behind_the_end_is_no_error(cluster: Cluster, then: str) -> None:
    """Nothing is missing: the client has its answer, and no error after it."""
    _, d = await cluster.fleet("prefill", "decode")
    raw = Raw([b":8\n" + token(word(1)), b":end\n" + DONE, None, LARGE if then == "whole" else LARGE[:-2]], then="hang")
    d.script.append(raw)
    text = await cluster.streamed(chat(max_tokens=20, stream=True), raw, after="[DONE]")
    assert spoken(text) == word(0) + word(1) and "error" not in text
    assert cluster.metrics.outcomes == {("done", ""): 1}
    cluster.check_idle()


@example([30, 3, 30], {31})  # it is cut between its two ends of lines
@given(st.lists(st.integers(3, 40), max_size=8), st.sets(st.integers(1, 300), max_size=12))
def test_an_event_is_too_large_however_it_is_cut(sizes: list[int], cuts: set[int]) -> None:
    stream = b"".join(b"x" * (size - len(END)) + END for size in sizes)
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    cutter, whole = EventCutter(30), b""
    try:
        for begin, end in pairwise(places):
            whole += cutter.feed(stream[begin:end])
    except EventTooLarge:
        assert max(sizes) > 30
    else:
        assert max(sizes, default=0) <= 30 and whole == stream
