"""Event streams in all that their grammar allows are read as a plain reader of that grammar reads them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from baton_serve.router.request.sent_tokens import num_shown
from baton_serve.router.upstream.content import has_content
from baton_serve.router.upstream.events import BOM, END, EventCutter, data_of, ends_with_done, is_done, with_data

LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:{}",
        b"data:  a ",
        b"data",
        b"data:",
        b"datax: 1",
        b": ping",
        b":",
        b"event: x",
        b"id:1",
        b"x" * 9,
    ]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
LINE_OR_BLANK = st.tuples(LINES | st.just(b""), ENDS).map(b"".join)


def read_plainly(stream: bytes) -> list[bytes]:
    """The data of all whole events, by the grammar's own words (WHATWG HTML, 9.2.6), a line at a time."""
    found, lines, data = [], [], None
    stream = stream.removeprefix(BOM)
    while stream:
        end = min((at for at in (stream.find(b"\r"), stream.find(b"\n")) if at >= 0), default=-1)
        if end < 0:
            break
        lines.append(stream[:end])
        stream = stream[end + (2 if stream[end : end + 2] == b"\r\n" else 1) :]
    for line in lines:
        name, _, value = line.partition(b":")
        if not line:
            if data is not None:
                found.append(data)
            data = None
        elif name == b"data":
            value = value.removeprefix(b" ")
            data = value if data is None else data + b"\n" + value
    return found


@example([BOM, b"data: 1\r\n", b"\r\n", b"data: 2\r\n", b"\r\n"], {1, 2, 11, 12, 13, 14})
@example([b"data: 1\n", b"\n", b"\n", b"data: 2\n", b"\n"], set())
@given(
    st.tuples(st.sampled_from([b"", BOM]), st.lists(LINE_OR_BLANK, max_size=12)).map(lambda told: [told[0], *told[1]]),
    st.sets(st.integers(1, 120), max_size=12),
)
def test_a_stream_is_read_by_its_grammar_however_it_is_written_and_cut(told: list[bytes], cuts: set[int]) -> None:
    stream = b"".join(told)
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    cutter, whole = EventCutter(), b""
    for begin, end in pairwise(places):
        piece = cutter.feed(stream[begin:end])
        assert not piece or (piece.endswith(END) and b"\r" not in piece)
        whole += piece
        if begin % 2:  # the stream's beginning is looked into by another cutter than the rest of it
            rest, cutter = cutter.rest(), EventCutter(is_begun=whole != b"" or stream[:1] != BOM[:1])
            assert not cutter.feed(rest)
    found = [data for event in whole.split(END) if (data := data_of(event)) is not None]
    assert found == read_plainly(stream)
    assert num_shown(whole) == len(found)


@given(st.lists(st.lists(LINES, min_size=1, max_size=3).map(b"\n".join), max_size=6), st.sets(st.integers(1, 90)))
def test_a_stream_that_is_usual_stays_as_it_is(events: list[bytes], cuts: set[int]) -> None:
    stream = b"".join(event + END for event in events)
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    cutter = EventCutter()
    assert b"".join(cutter.feed(stream[begin:end]) for begin, end in pairwise(places)) == stream


def test_a_piece_that_is_usual_is_not_copied() -> None:
    piece = b"data: 1\n\ndata: 2\n\n"
    assert EventCutter().feed(piece) is piece


@pytest.mark.parametrize("event", [b"data: [DONE]", b"data:[DONE]", b": x\ndata: [DONE] ", b"id: 7\ndata: [DONE]"])
def test_the_last_event_is_known_however_it_is_written(event: bytes) -> None:
    assert is_done(event)
    assert ends_with_done(event + END) and ends_with_done(b"data: 1\n\n" + event + END + b": bye\n\n")
    assert not ends_with_done(event + END + b"data: 1\n\n")


def test_an_event_without_data_has_no_content() -> None:
    assert not has_content(b"event: x\n\n: [DONE]\n\n")
    assert has_content(b'data:{"choices":\ndata:[{"text":"a"}]}\n\n')


def test_the_data_of_an_event_may_be_replaced() -> None:
    assert with_data(b"id: 1\ndata: a\ndata: b", b"c\nd") == b"id: 1\ndata: c\ndata: d"
    assert with_data(b"data: a\ndata", b"") == b""


@pytest.mark.parametrize("num_blank", range(12))
def test_blank_lines_are_no_part_of_an_event(num_blank: int) -> None:
    stream = b"data: 1\n\n" + b"\n" * num_blank + b"data: 2\n\n"
    for at in range(len(stream)):
        cutter = EventCutter(9)
        whole = cutter.feed(stream[:at]) + cutter.feed(stream[at:])
        assert whole.replace(b"\n", b"") == b"data: 1data: 2"
