"""Every family's answers, cut into pieces anywhere, are read alike."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_serve.workers.parsers.families import NONE, REASONING, TOOL_CALLS
from baton_serve.workers.parsers.message_format import MessageFormat
from tests.workers.parsers.kit import CALLS, THINKS, THOUGHTS, TOOLS, Read, read_by

NESTED = '{"a": {"b": "x}y"}, "c": [1, 2]}'

#: What parts begin and end with.
MARKS = [
    *("<tool_call>", "</tool_call>", '{"name": "', '"', "}", ";", "\n", "<think>", "</think>"),
    *("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[", "]", "{", "[THINK]", "[/THINK]"),
    *("<|start|>assistant", "<|channel|>", "analysis", "final", "<|message|>", " to=functions.", "<|end|>", "<|call|>"),
    *("<function=", "<parameter=a>", "</parameter>", "</function>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    *("function", "get", "<｜tool▁sep｜>", "```json\n", "<｜tool▁call▁end｜>", '", "arguments": ', NESTED),
]


@dataclass(frozen=True)
class Case:
    """``begun``: the end of the prompt."""

    tools: str
    reasoning: str
    text: str
    expected: Read
    begun: str = ""


CASES = {
    "hermes": Case(
        "hermes",
        "qwen3",
        '<think>\nhm\n</think>\n\nI say, "arguments": x.\n<tool_call>\n'
        f'{{"name": "get", "arguments": {NESTED}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "put", "arguments": {}}\n</tool_call>',
        Read('I say, "arguments": x.', "hm", [("get", NESTED), ("put", "{}")]),
    ),
    "hermes, cut off in a name": Case(
        "hermes", NONE, 'So:\n<tool_call>\n{"name": "ge', Read("So:", "", []), "<|im_start|>assistant\n"
    ),
    "hermes, cut off in arguments": Case(
        "hermes", NONE, '<tool_call>\n{"name": "get", "arguments": {"a": ', Read("", "", [("get", '{"a": ')])
    ),
    "hermes, after a text": Case("hermes", NONE, "\nx", Read("\nx"), "<|im_start|>assistant\nHi\n"),
    "hermes, after half a mark": Case("hermes", NONE, "s>", Read("s>"), "<|im_start|>assistant\nHi\n<tool"),
    "hermes, a call after a text": Case(
        "hermes",
        NONE,
        '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>\nx',
        Read("x", "", [("get", "{}")]),
        "<|im_start|>assistant\nHi\n",
    ),
    "a thought that goes on": Case(
        "hermes", "qwen3", "so\n</think>\n\nx", Read("x", "so"), "<|im_start|>assistant\n<think>\nhm\n"
    ),
    "hermes, no object": Case("hermes", NONE, "<tool_call>\nget()\n", Read("<tool_call>\nget()\n")),
    "the prompt has begun to think": Case(
        "hermes", "qwen3", "deep\n</think>\n\nYes.", Read("Yes.", "deep"), "</think><|im_start|>assistant\n<think>\n"
    ),
    "thoughts that do not end": Case("hermes", "qwen3", "<think>\nand so on", Read("", "and so on")),
    "qwen3_coder": Case(
        "qwen3_coder",
        NONE,
        "Sure.\n<tool_call>\n<function=get>\n<parameter=n>\n12\n</parameter>\n<parameter=s>\n34\nx\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=put>\n</function>\n</tool_call>",
        Read("Sure.", "", [("get", '{"n":12,"s":"34\\nx"}'), ("put", "{}")]),
    ),
    "llama": Case(
        "llama3_json",
        NONE,
        f'{{"name": "get", "parameters": {NESTED}}}; {{"name": "put", "parameters": {{}}}}',
        Read("", "", [("get", json.dumps(json.loads(NESTED), separators=(",", ":"))), ("put", "{}")]),
    ),
    "llama, with a tag": Case(
        "llama3_json",
        NONE,
        '<|python_tag|>{"type": "function", "name": "get", "parameters": {"n": 1}}',
        Read("", "", [("get", '{"n":1}')]),
    ),
    "llama, an object in a text": Case(
        "llama3_json",
        NONE,
        'I would {"name": "get", "parameters": {}}',
        Read('I would {"name": "get", "parameters": {}}'),
    ),
    "llama, numbers and characters that are none": Case(
        "llama3_json",
        NONE,
        '{"name": "get", "parameters": {"n": 123456789012345678901, "s": "\\ud800"}}',
        Read("", "", [("get", '{"n":123456789012345678901,"s":"\\ud800"}')]),
    ),
    "llama, no JSON": Case(
        "llama3_json", NONE, '{"name": "get", "parameters": {} and', Read('{"name": "get", "parameters": {} and')
    ),
    "mistral": Case(
        "mistral",
        "mistral",
        f"[THINK]hm[/THINK]Well [TOOL_CALLS]get[ARGS]{NESTED}[TOOL_CALLS]put[CALL_ID]abcdefghi[ARGS]{{}}",
        Read("Well", "hm", [("get", NESTED), ("put", "{}")]),
    ),
    "mistral without a mark": Case("mistral", NONE, '[TOOL_CALLS]get{"n": 1}', Read("", "", [("get", '{"n": 1}')])),
    "mistral, an id that is none": Case(
        "mistral", NONE, '[TOOL_CALLS],[CALL_ID]{"a":1}{"a":1}[ARGS][][', Read("", "", [(",", '{"a":1}')])
    ),
    "mistral, lists in lists": Case("mistral", NONE, "[TOOL_CALLS]" + "[" * 2000, Read("[" * 2000)),
    "an older mistral": Case(
        "mistral",
        NONE,
        '[TOOL_CALLS][{"name": "get", "arguments": {"n": 1}}, {"name": "put", "arguments": {}}]',
        Read("", "", [("get", '{"n":1}'), ("put", "{}")]),
    ),
    "deepseek_v3": Case(
        "deepseek_v3",
        "deepseek_r1",
        "<think>\nhm\n</think>\n\nok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n"
        f"{NESTED}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>put\n```json\n{{}}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Read("ok", "hm", [("get", NESTED), ("put", "{}")]),
    ),
    "deepseek_v31": Case(
        "deepseek_v31",
        "deepseek_r1",
        f"hm</think>ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{NESTED}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>put<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Read("ok", "hm", [("get", NESTED), ("put", "{}")]),
        "<｜Assistant｜><think>",
    ),
    "openai": Case(
        "openai",
        "openai_gptoss",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I will.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get <|constrain|>json<|message|>" + NESTED + "<|call|>",
        Read("I will.", "hm", [("get", NESTED)]),
        "<|start|>assistant",
    ),
    "openai, the recipient first": Case(
        "openai",
        "openai_gptoss",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.get<|channel|>commentary json"
        '<|message|>{"n": 1}',
        Read("", "hm", [("get", '{"n": 1}')]),
    ),
    "openai, an answer": Case(
        "openai", "openai_gptoss", '<|channel|>final<|message|>It is {"a"}<|return|>', Read('It is {"a"}')
    ),
}


def read(case: Case, pieces: list[str], tools: list[dict[str, Any]] | None) -> Read:
    parser = MessageFormat("", None, case.tools, case.reasoning).parser(case.begun, tools)
    assert parser is not None
    return read_by(parser, pieces)


@pytest.mark.parametrize("name", CASES)
def test_it_is_read(name: str) -> None:
    case = CASES[name]
    assert read(case, [case.text], TOOLS) == case.expected


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_pieces_do_not_matter(name: str, size: int) -> None:
    case = CASES[name]
    pieces = [case.text[at : at + size] for at in range(0, len(case.text), size)]
    assert read(case, pieces, TOOLS) == case.expected


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_cut_matters(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(list(CASES.values())))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(case.text)), max_size=6)))
    ends = [0, *cuts, len(case.text)]
    assert read(case, [case.text[a:b] for a, b in itertools.pairwise(ends)], TOOLS) == case.expected


@pytest.mark.parametrize("family", CALLS)
def test_of_a_call_that_is_cut_off_nothing_is_content(family: str) -> None:
    """Also between its name and its arguments, where half of a mark has come. Llama's calls are read whole or not."""
    head, between, _ = CALLS[family]
    for end in range(len(between) + 1):
        found = read(Case(family, NONE, "", Read()), [head, between[:end]], TOOLS)
        assert not (found.calls and found.content), between[:end]


def test_arguments_are_streamed() -> None:
    parser = MessageFormat("", None, "hermes", NONE).parser("", TOOLS)
    assert parser is not None
    parser.feed('<tool_call>\n{"name": "get", "arguments": {"a": "')
    assert [call.arguments for call in parser.feed("long").calls] == ["long"]


def test_without_tools_calls_are_text() -> None:
    case = CASES["hermes"]
    found = read(case, [case.text], None)
    assert not found.calls
    assert "<tool_call>" in found.content
    assert found.reasoning == "hm"


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(TOOL_CALLS)),
    st.lists(
        st.one_of(
            st.sampled_from(MARKS),
            st.text(max_size=4),
        ),
        max_size=12,
    ),
)
def test_whatever_a_model_writes_is_read(family: str, pieces: list[str]) -> None:
    """A model may write anything; no answer may end in an error because of it."""
    case = Case(family, THOUGHTS.get(family, THINKS)[0], "", Read())
    text = "".join(pieces)
    whole = read(case, [text], TOOLS)
    assert read(case, pieces, TOOLS) == whole
    assert read(case, list(text), TOOLS) == whole


def test_families_have_names_that_the_settings_know() -> None:
    assert set(REASONING) == {"deepseek_r1", "mistral", "openai_gptoss", "qwen3"}
