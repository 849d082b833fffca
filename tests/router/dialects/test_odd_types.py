"""Objects of every type that a body may have, whose ``type`` is then none, or no text: a 400, and never a 500."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest

from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.dialects.messages import blocks
from baton_serve.router.dialects.messages.translation import MessageTranslation
from baton_serve.router.dialects.objects import types_of
from baton_serve.router.dialects.responses import calls, items
from baton_serve.router.dialects.responses.translation import ResponseTranslation


def types_in(union: Any) -> set[str]:
    """The types of the objects of a union."""
    return {kind for model in get_args(get_args(union)[0]) for kind in types_of(model)}


ID = "ab" * 16
TEXT = {"type": "input_text", "text": "a"}
FUNCTION = {"type": "function", "name": "get", "parameters": {"type": "object"}}
THOUGHT = {"type": "summary_text", "text": "a"}
FIELDS: dict[str, Any] = {
    "call_id": "c",
    "name": "f",
    "input": "a",
    "arguments": "{}",
    "tools": [FUNCTION],
    "summary": [THOUGHT],
    "role": "user",
    "content": [TEXT],
    "output": [TEXT, {"type": "input_image"}, {"type": "input_file"}],
}
#: The fields that a type of items has in another form.
OTHER: dict[str, dict[str, Any]] = {"reasoning": {"content": [{"type": "reasoning_text", "text": "a"}]}}
TOOLS: list[dict[str, Any]] = [
    FUNCTION,
    {"type": "custom", "name": "patch", "format": {"type": "text"}},
    {"type": "namespace", "name": "n", "tools": [FUNCTION]},
    {"type": "web_search"},
    *({"type": kind} for kind in calls.CLIENT_RUN),
]
RESPONSE: dict[str, Any] = {
    "model": "m",
    "input": [{**FIELDS, **OTHER.get(kind, {}), "type": kind} for kind in types_in(items.Item)],
    "tools": TOOLS,
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get"}]},
    "text": {"format": {"type": "text"}},
}

BLOCK_TEXT = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
CHANGES: list[dict[str, Any]] = [
    {"type": kind, "tool": {"type": "tool_reference", "name": "get"}} for kind in ("tool_addition", "tool_removal")
]
RESULTS: list[dict[str, Any]] = [
    BLOCK_TEXT,
    {"type": "tool_reference", "tool_name": "get"},
    {"type": "image", "source": {"type": "url", "url": "x"}},
    {"type": "document"},
]
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 2000,
    "system": [BLOCK_TEXT],
    "messages": [
        {
            "role": "user",
            "content": [
                BLOCK_TEXT,
                {"type": "tool_result", "tool_use_id": "a", "content": RESULTS},
                {"type": "mid_conv_system", "content": [BLOCK_TEXT, *CHANGES]},
            ],
        },
        {"role": "system", "content": CHANGES},
        {
            "role": "assistant",
            "content": [
                BLOCK_TEXT,
                {"type": "thinking", "thinking": "a"},
                {"type": "redacted_thinking", "data": "a"},
                {"type": "tool_use", "id": "a", "name": "get", "input": {}},
            ],
        },
        {"role": "user", "content": "hi"},
    ],
    "tools": [{"type": "custom", "name": "get", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "adaptive"},
    "cache_control": {"type": "ephemeral"},
}

BODIES = [(ResponseTranslation, RESPONSE), (MessageTranslation, MESSAGES)]


def _copy(body: dict[str, Any]) -> Any:
    """A copy in which no two places are the same object."""
    return json.loads(json.dumps(body))


def _typed(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a value that have a type."""
    if isinstance(value, dict):
        if "type" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _typed(each)


@pytest.mark.parametrize(("translate", "body"), BODIES, ids=["responses", "messages"])
def test_the_bodies_of_these_tests_are_taken_as_they_are(
    translate: Callable[[dict[str, Any], str], Any], body: dict[str, Any]
) -> None:
    translate(_copy(body), ID)


def test_the_messages_of_these_tests_have_blocks_of_every_type() -> None:
    assert {one["type"] for one in _typed(MESSAGES)} >= types_in(blocks.Block) | types_in(blocks.ResultBlock)


@pytest.mark.parametrize("odd", [[], {}, None, 5, True, ["text"], {"type": []}], ids=repr)
@pytest.mark.parametrize(("translate", "body"), BODIES, ids=["responses", "messages"])
def test_an_odd_type_is_no_bug_of_ours(
    translate: Callable[[dict[str, Any], str], Any], body: dict[str, Any], odd: Any
) -> None:
    for number in range(len(list(_typed(body)))):
        changed = _copy(body)
        list(_typed(changed))[number]["type"] = odd
        with contextlib.suppress(ApiError):
            translate(changed, ID)
