"""The end of a JSON value, and that an answer that is cut off has all of a call's arguments or visibly not."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.workers.parsers.families import NONE
from baton_serve.workers.parsers.forced_calls import forced_parser
from baton_serve.workers.parsers.json_end import JsonEnd
from baton_serve.workers.parsers.message_format import MessageFormat
from tests.workers.parsers.kit import CALLS, TOOLS, Read, read_by

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(['"', "\\", "}", "{[", '\\"']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=3), JSON, max_size=3)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    ends = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]


@given(OBJECTS | st.lists(JSON, max_size=3), st.text(max_size=8), st.lists(st.integers(0, 999), max_size=6))
def test_nothing_behind_the_end_is_inside(value: Any, after: str, cuts: list[int]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    end = JsonEnd()
    assert "".join(map(end.inside, pieces_of(text + after, cuts))) == text
    assert end.ended


@given(OBJECTS)
def test_the_end_is_not_before_the_last_character(value: Any) -> None:
    text = json.dumps(value)
    for length in range(len(text)):
        end = JsonEnd()
        assert end.inside(text[:length]) == text[:length] and not end.ended


@pytest.mark.parametrize("text", ["12", '"a"', "none} ]", "  x"])
def test_what_is_no_object_has_no_end(text: str) -> None:
    end = JsonEnd()
    assert "".join(map(end.inside, text)) == text and not end.ended


ARGUMENTS = '{"s": "x}\\"{", "n": [2, {}]}'
FORMS = ["forced", *CALLS]


def cut_calls(form: str, text: str, pieces: list[str]) -> tuple[Read, bool]:
    """The message of an answer of a call, and whether its last call is whole."""
    parser = forced_parser(TOOLS) if form == "forced" else MessageFormat("", None, form, NONE).parser("", TOOLS)
    assert parser is not None
    found = read_by(parser, pieces)
    return found, parser.num_calls > 0 and parser.is_whole(parser.num_calls - 1)


@pytest.mark.parametrize("form", FORMS)
def test_a_call_that_is_cut_off_anywhere(form: str) -> None:
    """Its arguments are a beginning of what the model has written of them, and whole if they are JSON."""
    begin, between, end = CALLS["hermes" if form == "forced" else form]
    written = "<parameter=s>\nx\n</parameter>" if form == "qwen3_coder" else ARGUMENTS
    expected = '{"s":"x"}' if form == "qwen3_coder" else ARGUMENTS
    if form == "llama3_json":
        expected = json.dumps(json.loads(ARGUMENTS), separators=(",", ":"))
    text = begin + between + written + end
    num_whole = 0
    for length in range(len(text) + 1):
        found, is_whole = cut_calls(form, text, [text[:length]])
        assert cut_calls(form, text, list(text[:length])) == (found, is_whole)
        for name, arguments in found.calls:
            assert name == "get"
            assert expected.startswith(arguments)
            assert is_whole == (arguments == expected)
            num_whole += is_whole
    assert num_whole


@pytest.mark.parametrize("form", ["forced", "hermes", "mistral", "deepseek_v3", "deepseek_v31", "openai"])
def test_arguments_that_are_whole_stay_so_in_half_of_the_mark(form: str) -> None:
    begin, between, end = CALLS["hermes" if form == "forced" else form]
    for length in range(len(end)):
        found, is_whole = cut_calls(form, "", [begin + between + ARGUMENTS + end[:length]])
        assert (found.calls, is_whole) == ([("get", ARGUMENTS)], True)
