"""A D of ours names the tokens of its stream badly: whoever goes on is told ids, or nobody goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.request.sent_tokens import SentTokens
from tests.kits.fuzz.broken_worker import CHUNKED, DONE, NAMED_EVENTS, Broken, chunk, event, whole
from tests.kits.fuzz.profile import fuzz, mutated


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broken() -> AsyncIterator[Broken]:
    async with Broken(ours=True) as made:
        yield made


def cut(events: bytes) -> bytes:
    """An answer of these events that breaks off."""
    return CHUNKED + (chunk(events) if events else b"")


@pytest.mark.interpreted
async def test_named_tokens_are_taken_and_gone_on_with(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing below would reach what it is about."""
    taken: list[bytes] = []
    take = SentTokens.take
    monkeypatch.setattr(SentTokens, "take", lambda seen, data, num: taken.append(data) or take(seen, data, num))
    await broken.answered(cut(b":8\n" + event() + b":9\n" + event()), stream=True)
    assert b":9\n" in b"".join(taken)
    resumed = broken.cluster.metrics.resumed
    assert resumed["resumed"] == 1, resumed


IDS = (
    b"8",
    b"8,9,10",
    b"",
    b"-5",
    b"8,-9",
    b"2147483647",
    b"2147483648",
    b"18446744073709551616",
    b"9999999999999999999999",
    b"1" * 5000,
    b"x",
    b"8,,9",
    b" 8",
    b"+8",
    b"8_0",
    b"0x8",
    b"8.0",
    b"1e3",
    b"\xd9\xa3",
    b"\xff",
    b"end,8",
    b"8\r",
)
LINES = st.sampled_from([b":%b\n" % one for one in (*IDS, b"end", b"end ", b"END")])
PIECES = st.one_of(
    st.tuples(LINES, st.sampled_from([event(), event("\ufffd"), event(""), event("", "length"), DONE])).map(b"".join),
    st.tuples(LINES, LINES, st.just(event())).map(b"".join),
    LINES,
    st.sampled_from(
        [
            event(),
            event("", "length"),
            DONE,
            b":end\n" + event() + event("", "length"),
            b":end\n" + event("", "length") + DONE,
            b":end\n\n\n",
            b'data: {"error": {"message": "x", "code": 500}}\n\n',
            b':8\ndata: {"error": {"message": "x", "code": 500}}\n\n',
            b':end\ndata: {"error": {"message": "x", "code": 500}}\n\n',
        ]
    ),
)


@fuzz(150)
@given(pieces=st.lists(PIECES, min_size=1, max_size=6), is_cut=st.booleans())
async def test_a_stream_with_odd_names(broken: Broken, pieces: list[bytes], is_cut: bool) -> None:
    """After one good event, so that the stream has begun."""
    events = b":8\n" + event() + b"".join(pieces)
    await broken.answered(cut(events) if is_cut else whole(events), stream=True)


@fuzz(60)
@given(answer=mutated(whole(NAMED_EVENTS)), stream=st.booleans())
async def test_a_named_answer_with_changed_bytes(broken: Broken, answer: bytes, stream: bool) -> None:
    await broken.answered(answer, stream=stream)


@fuzz(60)
@given(events=mutated(NAMED_EVENTS), is_cut=st.booleans())
async def test_named_events_with_changed_bytes(broken: Broken, events: bytes, is_cut: bool) -> None:
    """HTTP itself is well."""
    await broken.answered(cut(events) if is_cut else whole(events), stream=True)


@pytest.mark.parametrize("one", IDS, ids=range(len(IDS)))
async def test_each_id_by_itself(broken: Broken, one: bytes) -> None:
    await broken.answered(cut(b":8\n" + event() + b":%b\n" % one + event()), stream=True)
