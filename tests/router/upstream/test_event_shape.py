"""What is known of an event by those before it is what a look into it would say."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from baton_serve.router.request.sent_tokens import num_shown
from baton_serve.router.upstream.event_shape import EventShape
from baton_serve.router.upstream.events import EventCutter
from baton_serve.router.upstream.worker_errors import LOOKS_FAILED

#: What an event, or something that looks like one, may be made of.
PARTS = [
    b"data: ",
    b'{"content":"',
    b'"content":"',
    b'"text":"',
    b'"reasoning_content":"',
    b'"reasoning":"',
    b'"',
    b"error",
    b'"error"',
    b"a",
    b"\\",
    b":",
    b"}",
    b"\n",
]
TWICE = b'data: {"delta":{"reasoning_content":"%b","reasoning":"%b"}}\n\n'
THINGS = st.lists(st.sampled_from(PARTS), max_size=8).map(b"".join)


def token(text: str, **choice: Any) -> bytes:
    return (
        b"data: " + orjson.dumps({"id": "a", "choices": [{"index": 0, "delta": {"content": text}, **choice}]}) + b"\n\n"
    )


def is_ordinary(data: bytes) -> bool:
    """What ``fits`` claims, found by the searches that it saves."""
    is_one_line = data.find(b"\n") == len(data) - 2 and data.endswith(b"\n\n")
    return is_one_line and EventCutter().feed(data) == data and num_shown(data) == 1 and LOOKS_FAILED not in data


def taught(*events: bytes) -> EventShape:
    """A shape that has met the events as the pump shows them to it: also such as fit, or have several lines."""
    shape = EventShape()
    for event in events:
        if EventCutter().feed(event) == event and num_shown(event) == 1 and LOOKS_FAILED not in event:
            shape.learn(event)
    return shape


@given(st.lists(THINGS.map(lambda data: data + b"\n\n"), max_size=4), THINGS)
@example([b'data: {"content":"a"}\n\n'], b'data: {"content":"error"}')
@example([b'data: {"content":"a"}\n\n'], b'data: {"content":"\n\n"}')
@example([b'data: {"content":"a"}\n\n'], b'data: {"content":"a","error":"}')
@example([TWICE % (b"a", b"a")], (TWICE % (b"error", b"error"))[:-2])
@example([TWICE % (b"a", b"a")], (TWICE % (b"error", b"errora"))[:-2])
@example([TWICE % (b"a", b"a")], (TWICE % (b"b\n", b"b\n"))[:-2])
@example([b'"content":"\\"}\n\n'], b'"content":"error"}')
@example([b'event: a\ndata: {"content":"a"}\n\n'], b'event: a\ndata: {"content":"b"}')
def test_what_fits_is_ordinary(before: list[bytes], data: bytes) -> None:
    shape = taught(*before)
    for event in (data, data + b"\n\n"):
        assert not event or not shape.fits(event) or is_ordinary(event)


LETTERS = st.characters(codec="utf-8", exclude_characters='"', exclude_categories=["Cc"])


@given(st.lists(st.text(LETTERS, max_size=8), min_size=1, max_size=6))
def test_the_tokens_of_a_stream_fit_after_the_first(texts: list[str]) -> None:
    shape = taught(token("x"))
    for text in texts:
        assert shape.fits(token(text)) is (text != "error"), text


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[{"text":"%b","finish_reason":null}]}\n\n',
        b'data: {"choices":[{"delta":{"reasoning_content":"%b"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"","reasoning":"%b"}}]}\n\n',
        b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"%b"}}]}}]}\n\n',
    ],
)
def test_other_texts_fit_as_well(event: bytes) -> None:
    assert taught(event % b"a").fits(event % b"bcd")
    assert not taught(event % b"a").fits(event % b'b"d')


@pytest.mark.parametrize("second", [b"bcd", b"ab", b"", b'abc"', b"abcd"])
def test_a_text_under_two_names_fits_if_it_is_the_same(second: bytes) -> None:
    shape = taught(TWICE % (b"x", b"x"))
    assert shape.fits(TWICE % (b"abc", b"abc"))
    assert not shape.fits(TWICE % (b"abc", second))
    shape.learn(token("x"))
    assert shape.fits(token("y"))
    assert not shape.fits(TWICE % (b"abc", b"abc"))


@pytest.mark.parametrize(
    "event",
    [
        token("y" * 33),
        token('"'),
        token("y", finish_reason="stop"),
        b":5\n" + token("y"),
        token("y")[:-1],
        token("y") + token("z"),
        b"data: [DONE]\n\n",
    ],
)
def test_what_differs_in_more_does_not_fit(event: bytes) -> None:
    assert not taught(token("x")).fits(event)


def test_a_stream_that_changes_is_learned_again() -> None:
    first, second = token("x"), token("x", stop_reason=None)
    shape = taught(first, second)
    assert shape.fits(token("z", stop_reason=None))
    assert not shape.fits(token("z"))


def test_a_stream_that_never_fits_is_given_up() -> None:
    shape = EventShape()
    for number in range(100):
        event = token("x", stop_reason=str(number))
        assert not shape.fits(event)
        shape.learn(event)
    assert shape.fits(token("y", stop_reason="15")), "it has learned from sixteen"


def test_quotes_in_texts_are_no_lessons() -> None:
    shape = taught(token("x"), *(token(text) for text in ('"', ' said "', 'a" b', '"}') * 100))
    assert shape.fits(token("y"))
    assert taught(*[token('"')] * 100, token("x")).fits(token("y"))


def test_what_fits_is_no_lesson() -> None:
    assert taught(*map(token, "abc" * 100), token("x", stop_reason=None)).fits(token("y", stop_reason=None))
