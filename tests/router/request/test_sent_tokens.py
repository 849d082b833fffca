"""What a client has been sent, out of streams that name their tokens, however they are cut."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.request import sent_tokens as seen_module
from baton_serve.router.request.sent_tokens import SentTokens, num_shown
from baton_serve.router.upstream.events import END, EventTooLarge
from tests.kits.router.cluster import Cluster, chat, eventually, spoken
from tests.kits.router.stub_workers import FIRST_TOKEN, Raw, Refuse, word

ROLE = b'data: {"created":5,"role":1}\n\n'
DONE = b"data: [DONE]\n\n"
LAST = [b':end\ndata: {"finish_reason":"stop"}\n\n', b'data: {"usage":1}\n\n', DONE]


def text(*ids: int) -> bytes:
    return b':%b\ndata: {"text":"\\n:9 :end"}\n\n' % ",".join(map(str, ids)).encode()


def silent(*ids: int) -> bytes:
    """Tokens without text."""
    return b":%b\n\n" % ",".join(map(str, ids)).encode()


def stripped(event: bytes) -> bytes:
    """What of it is for a client."""
    rest = event.partition(b"\n")[2] if event.startswith(b":") else event
    return b"" if rest == b"\n" else rest


@given(
    st.booleans(),
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2**17), min_size=1, max_size=3)), max_size=8),
    st.integers(0, 3),
    st.sets(st.integers(0, 12), max_size=12),
)
def test_a_client_is_shown_the_same_however_the_stream_is_cut(
    opens: bool, tokens: list[tuple[bool, list[int]]], num_last: int, cuts: set[int]
) -> None:
    told = [silent(*ids) if is_silent else text(*ids) for is_silent, ids in tokens]
    events = [ROLE] * opens + told + LAST[:num_last]
    seen, shown, begin = SentTokens(), b"", 0
    seen.leg(ROLE, named=True, opens=opens)
    for end in [*sorted(cut for cut in cuts if 0 < cut < len(events)), len(events)]:
        if begin < end:
            part = b"".join(events[begin:end])
            shown += seen.take(part, part.count(END))
        begin = end
    num_shown = len(events) if num_last == 3 else len(events) - num_last
    assert shown == b"".join(map(stripped, events[:num_shown])), "the last words come whole or not at all"
    assert seen.ids() == [one for _, ids in tokens for one in ids]
    assert seen.can_continue()


def test_tokens_without_text_are_named_and_not_shown() -> None:
    seen = SentTokens()
    seen.leg(text(1), named=True, opens=False)
    shown = [seen.take(part, part.count(END)) for part in (silent(2), b":\n\n", text(3), silent(4) + text(5))]
    assert shown == [b"", b"", stripped(text(3)), stripped(text(5))]
    assert seen.ids() == [2, 3, 4, 5] and seen.can_continue()


@pytest.mark.parametrize("first", [silent(1), silent(1) + silent(2), b":\n\n"])
def test_created_is_read_behind_tokens_without_text(first: bytes) -> None:
    seen = SentTokens()
    seen.leg(first, named=True, opens=False)
    for part in (first, b':3\ndata: {"created":8}\n\n', b':4\ndata: {"created":9}\n\n'):
        seen.take(part, part.count(END))
    assert orjson.loads(seen.resume())["created"] == 8


def test_comments_are_no_events() -> None:
    assert num_shown(silent(1) + text(2) + b":\n\n" + b"data: x\n\n: a\n: b\n\n") == 2
    assert num_shown(b"") == num_shown(b":\n\n") == 0


@given(st.lists(st.sampled_from([b"\n", b"\n\n", b":", b"data: x", b"a"]), max_size=8))
def test_events_are_counted_quickly_as_they_are_counted_one_by_one(parts: list[bytes]) -> None:
    events = b"".join(parts) + b"\n\n"
    one_by_one = sum(b"\ndata:" in b"\n" + event for event in events.split(b"\n\n"))
    assert num_shown(events) == one_by_one


async def test_a_client_sees_nothing_of_tokens_without_text_and_who_goes_on_is_told(cluster: Cluster) -> None:
    """They come first, last, alone and with others; what counts is what is shown."""
    p, d = await cluster.fleet("prefill", "decode")
    token = b'data: {"choices":[{"index":0,"delta":{"content":" t1"}}]}\n\n'
    raw = Raw([silent(8), silent(9) + b":10\n" + token, silent(11), silent(12) + silent(13), None], then="die")
    d.script.append(raw)
    request = asyncio.create_task(cluster.post(chat(max_tokens=20, stream=True)))
    await eventually(lambda: any(live.sent_tokens.ids() == [FIRST_TOKEN, *range(8, 14)] for live in cluster.active))
    (live,) = cluster.active
    assert (live.progress.num_tokens, live.progress.num_chunks) == (2, 1)
    raw.go.set()
    text = (await request).text
    assert not [line for line in text.splitlines() if line.startswith(":")]
    assert "\n\n\n" not in text and spoken(text).startswith(word(0) + word(1))
    assert p.bodies[1]["kv_transfer_params"]["resume"]["token_ids"] == [FIRST_TOKEN, *range(8, 14)]


async def test_comments_of_a_worker_that_names_nothing_are_no_tokens(cluster: Cluster) -> None:
    d = await cluster.add("both", ours=False)
    token = b'data: {"choices":[{"index":0,"delta":{"content":" t1"}}]}\n\n'
    raw = Raw([token, b":\n\n", b":\n\n" + token, None, b"data: [DONE]\n\n"])
    d.script.append(raw)
    request = asyncio.create_task(cluster.post(chat(max_tokens=20, stream=True)))
    await eventually(lambda: any(live.progress.num_tokens == 2 for live in cluster.active))
    raw.go.set()
    assert spoken((await request).text) == " t1 t1"


def test_a_worker_that_goes_on_is_told_the_tokens_and_when_the_answer_began() -> None:
    seen = SentTokens()
    seen.add(3)
    seen.created = 77
    seen.leg(b"", named=True, opens=False)
    seen.take(text(4, 5), 1)
    assert orjson.loads(seen.resume()) == {"token_ids": [3, 4, 5], "created": 77}
    seen.forget()
    assert orjson.loads(seen.resume()) == {"token_ids": [], "created": 0}


def test_created_is_read_from_the_first_event() -> None:
    seen = SentTokens()
    seen.leg(ROLE + text(1), named=True, opens=True)
    seen.take(ROLE + text(1), 2)
    assert orjson.loads(seen.resume()) == {"token_ids": [1], "created": 5}


def test_a_time_beyond_every_bound_ends_in_no_bug() -> None:
    seen = SentTokens()
    first = ROLE.replace(b"5", b"9" * 30)
    seen.leg(first, named=True, opens=True)
    seen.take(first, 1)
    assert 0 < orjson.loads(seen.resume())["created"] < 1 << 63


@pytest.mark.parametrize("line", [b":-5", b":9,-1", b":2147483648", b":" + b"9" * 22, b":" + b"9" * 5000, b":8,x"])
async def test_a_number_that_no_token_has_is_told_to_nobody(cluster: Cluster, line: bytes) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    d.script.append(Raw([line + b'\ndata: {"choices":[{"index":0,"delta":{"content":" t1"}}]}\n\n'], then="die"))
    text = (await cluster.post(chat(max_tokens=20, stream=True))).text
    assert spoken(text) == word(0) + word(1)
    assert '"code":"internal_error"' not in text and text.count('"error"') == 1
    assert (len(p.bodies), len(d.bodies)) == (1, 1)
    cluster.check_idle()


@pytest.mark.parametrize("first_token", [2**31, 2**70])
@pytest.mark.parametrize("act", ["breaks off", "cannot read"])
async def test_a_stream_does_not_go_on_after_a_first_token_that_cannot_be(
    cluster: Cluster, first_token: int, act: str
) -> None:
    """The client has it already, so nobody may begin anew either."""
    p, d = await cluster.fleet("prefill", "decode")
    p.first_token = first_token
    if act == "breaks off":
        d.script.append(Raw([b":8\ndata: {}\n\n"], then="die"))
    else:
        unread = {"error": {"message": "gone", "type": "server_error", "code": "kv_read_failed"}}
        d.script.extend([Refuse(502, unread), Refuse(502, unread)])
    text = (await cluster.post(chat(max_tokens=20, stream=True))).text
    assert '"code":"internal_error"' not in text and text.count('"error"') == 1
    assert (len(p.bodies), text.count('"role"')) == (1, 1)


def test_the_largest_number_that_a_token_may_have_is_a_token() -> None:
    seen = SentTokens()
    seen.leg(b"", named=True, opens=False)
    seen.take(text(0, 2**31 - 1), 1)
    assert seen.ids() == [0, 2**31 - 1] and seen.can_continue()


@pytest.mark.parametrize(
    ("opens", "events"),
    [(False, [ROLE]), (True, [ROLE, ROLE]), (False, [text(1), b"data: {}\n\n"]), (False, [b": ping\ndata: {}\n\n"])],
)
def test_a_stream_with_content_that_names_no_token_cannot_be_continued(opens: bool, events: list[bytes]) -> None:
    seen = SentTokens()
    seen.leg(b"", named=True, opens=opens)
    for event in events:
        seen.take(event, 1)
    assert not seen.can_continue()


def test_cached_tokens_are_those_of_the_first_prefill() -> None:
    seen = SentTokens()
    assert seen.cached_as_first(b'{"num_cached_tokens":0,"x":1}') == b'{"num_cached_tokens":0,"x":1}'
    assert seen.cached_as_first(b'{"num_cached_tokens":128,"x":2}') == b'{"num_cached_tokens":0,"x":2}'
    assert seen.cached_as_first(b'{"x":2}') == b'{"x":2}'
    assert seen.cached_as_first(b'{"cached_tokens": 128}') == b'{"cached_tokens": 0}', "of usage"


def test_the_last_words_of_a_worker_that_died_in_them_are_forgotten() -> None:
    seen = SentTokens()
    seen.leg(b"", named=True, opens=False)
    assert seen.take(text(1) + LAST[0], 2) == stripped(text(1))
    seen.leg(b"", named=True, opens=False)
    assert seen.take(text(2), 1) == stripped(text(2))
    assert seen.take(b"".join(LAST), 3) == b"".join(map(stripped, LAST))
    assert seen.ids() == [1, 2]


def test_the_ids_that_a_worker_makes_a_router_keep_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_module, "MAX_IDS_BYTES", 4)
    seen = SentTokens()
    seen.leg(b"", named=True, opens=True)
    for _ in range(3):
        assert seen.take(text(11), 1) == stripped(text(11))
    assert seen.ids() == [11, 11]
    assert not seen.can_continue(), "one was not kept"


def test_last_words_without_an_end_are_not_kept_for_ever() -> None:
    seen = SentTokens(max_event_bytes=1024)
    seen.leg(b"", named=True, opens=False)
    event = b'data: {"text":"%b"}\n\n' % (b"x" * 512)
    assert seen.take(LAST[0] + event, 2) == b""
    with pytest.raises(EventTooLarge):
        seen.take(event, 1)
