"""Which format a model's answers have, found in its chat template or chosen by name."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.workers.parsers.families import AUTO, NONE, REASONING_MARKS, TOOL_MARKS
from baton_serve.workers.parsers.families import family as family_of
from baton_serve.workers.parsers.message_format import MessageFormat
from baton_serve.workers.parsers.message_parser import joined

#: Pieces of chat templates, as the models have them.
TEMPLATES = {
    "hermes": "{{- '<tool_call>' + tool_call.name }}",
    "qwen3_coder": "{{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}",
    "mistral": "{{- '[TOOL_CALLS]' + tool_call.function.name + '[ARGS]' }}",
    "llama3_json": "{{- '<|python_tag|>' + tool_call.name }}",
    "deepseek_v3": "{{'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['name'] + '\\n' + '```json'}}",
    "deepseek_v31": "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'}}",
    "openai": "{{- '<|start|>assistant<|channel|>commentary to=functions.' }}",
}
OWN = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "content": {"content": "text"},
        "thinking": {"open": "<t>", "close": "</t>"},
        "tool_calls": {
            "open": "<c>",
            "close": "</c>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "get"}}]


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_chat_template_tells(family: str) -> None:
    assert family_of(AUTO, TEMPLATES[family], TOOL_MARKS) == family
    assert family_of(NONE, TEMPLATES[family], TOOL_MARKS) is None
    assert family_of("hermes", TEMPLATES[family], TOOL_MARKS) == "hermes"


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{% set content = content.split('</think>')[-1] %}", "qwen3"),
        ("{{'<｜Assistant｜><think>\\n'}}{{ content.split('</think>') }}", "deepseek_r1"),
        ("{{'<｜Assistant｜>'}}", None),
        ("{{ '[THINK]' + thinking + '[/THINK]' }}", "mistral"),
        (TEMPLATES["openai"], "openai_gptoss"),
        ("{{ message.content }}", None),
    ],
)
def test_a_chat_template_tells_of_reasoning(template: str, family: str | None) -> None:
    assert family_of(AUTO, template, REASONING_MARKS) == family


def test_without_a_family_all_is_content() -> None:
    plain = MessageFormat("{{ message.content }}")
    assert not plain.understands_calls
    assert plain.parser("", None) is None


def test_the_models_own_template_counts() -> None:
    """It is of the library's own form; its calls are whole."""
    own = MessageFormat(TEMPLATES["hermes"], OWN)
    assert own.understands_calls and own.names == ["own"]
    parser = own.parser("<|im_start|>assistant\n<t>", TOOLS)
    assert parser is not None
    delta = joined((parser.feed('hm</t>yes<c>{"name": "get", "arguments": {"a": 1}}</c>'), parser.finish()))
    assert (delta.reasoning, delta.content) == ("hm", "yes")
    assert [(call.name, call.arguments) for call in delta.calls] == [("get", '{"a":1}')]


def test_a_name_counts_more_than_the_models_own_template() -> None:
    assert MessageFormat("", OWN, tool_call_parser="mistral").names == ["mistral", None]


def test_marks_are_what_parts_begin_or_end_with() -> None:
    form = MessageFormat("", None, "mistral", "mistral")
    assert all(map(form.has, ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")))
    assert not any(map(form.has, ("<s>", "</s>", "[INST]")))
    assert not MessageFormat("").has("[TOOL_CALLS]")
    assert all(map(MessageFormat("", None, "deepseek_v31").has, ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>")))
    assert all(map(MessageFormat("", None, "openai").has, ("<|channel|>", "<|end|>", "<|return|>", "<|call|>")))
