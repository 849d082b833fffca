"""However many spaces an answer has, each of its characters costs the same, and little is held back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_serve.workers.parsers.families import TOOL_CALLS
from baton_serve.workers.parsers.message_format import MessageFormat
from baton_serve.workers.parsers.message_parser import MessageParser
from baton_serve.workers.parsers.spaces import MAX_SPACES, bounded, load
from tests.workers.parsers.kit import CALLS, THINKS, THOUGHTS, TOOLS, read_by

NUM_SPACES = 2_000
#: The longest mark, with as many spaces as it may have, in each of its places.
MAX_HELD = 4 * MAX_SPACES + 64
PLACES = ("at the start", "after text", "in reasoning", "in a call", "behind arguments", "between calls")


class Searched:
    """A pattern that counts how many characters it is asked to look at."""

    def __init__(self, pattern: Any, counts: list[int]) -> None:
        self._pattern = pattern
        self._counts = counts

    def search(self, text: str, at: int, **how: Any) -> Any:
        self._counts.append(len(text) - at)
        return self._pattern.search(text, at, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pattern, name)


def before_spaces(family: str, place: str) -> str:
    begin, between, end = CALLS[family]
    arguments = '{"n": 1}' if family != "qwen3_coder" else "<parameter=n>1</parameter>"
    return {
        "at the start": "",
        "after text": "Hi",
        "in reasoning": THOUGHTS.get(family, THINKS)[1] + "hm",
        "in a call": begin + between,
        "behind arguments": begin + between + arguments,
        "between calls": begin + between + arguments + end,
    }[place]


def counting_parser(family: str) -> tuple[MessageParser, list[int]]:
    """A parser, and how many characters each of its searches was about."""
    form = MessageFormat("", None, family, THOUGHTS.get(family, THINKS)[0])
    counts: list[int] = []
    template = form._with_calls
    assert template is not None
    for field in template.fields.values():
        for name in ("open_re", "close_re"):
            if getattr(field, name) is not None:
                setattr(field, name, Searched(getattr(field, name), counts))
    parser = form.parser("", TOOLS)
    assert parser is not None
    return parser, counts


@pytest.mark.parametrize("space", [" ", "\n"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("family", sorted(TOOL_CALLS))
def test_a_run_of_spaces_is_searched_once(family: str, place: str, space: str) -> None:
    parser, counts = counting_parser(family)
    read_by(parser, [*before_spaces(family, place), *space * NUM_SPACES])
    num_patterns = 2 * len(TOOL_CALLS[family]["fields"])
    assert sum(counts) < num_patterns * MAX_HELD * NUM_SPACES
    assert max(counts) <= MAX_HELD


@pytest.mark.parametrize("family", sorted(set(TOOL_CALLS) - {"openai"}))
def test_spaces_are_shown_as_they_come(family: str) -> None:
    """They are held back only as far as a mark may begin with them. Harmony has nothing outside its messages."""
    parser, _ = counting_parser(family)
    shown = ""
    for number in range(1, 201):
        shown += parser.feed("\n").content
        assert number - len(shown) <= 2 * MAX_SPACES
    parser.finish()


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(TOOL_CALLS)),
    st.sampled_from(PLACES),
    st.integers(0, 3 * MAX_SPACES),
    st.sampled_from(["", "x", "</think>", "[/THINK]", "<|end|>", "call"]),
    st.lists(st.integers(1, 60), max_size=8),
)
def test_pieces_of_spaces_do_not_matter(family: str, place: str, num: int, after: str, sizes: list[int]) -> None:
    after = "".join(CALLS[family]) if after == "call" else after
    text = before_spaces(family, place) + " \n" * (num // 2) + " " * (num % 2) + after
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    pieces.append(text[at:])
    whole = read_by(counting_parser(family)[0], [text])
    assert read_by(counting_parser(family)[0], pieces) == whole
    assert read_by(counting_parser(family)[0], list(text)) == whole


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"\s*<a>\s+b", r"\s{0,16}<a>\s{1,16}b"),
        (r"\s*?x\s?", r"\s{0,16}?x\s?"),
        (r"[\s*][^\]\s+]", r"[\s*][^\]\s+]"),
        (r"\\s*\[\s*", r"\\s*\[\s{0,16}"),
    ],
)
def test_patterns_have_bounded_spaces(pattern: str, expected: str) -> None:
    assert bounded(pattern) == expected


def test_templates_of_models_are_bounded_too() -> None:
    own = {"start_anchor": "<a>", "fields": {"content": {}, "calls": {"open_pattern": r"\s*<c>", "close": "</c>"}}}
    assert load(own).fields["calls"].open_re.pattern == r"\s{0,16}<c>"
