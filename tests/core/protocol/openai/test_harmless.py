"""Parameters that are not supported: taken with a value that asks for what is done anyway, else refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from core.protocol.errors import BadRequestError
from core.protocol.openai.requests import ChatRequest, validate

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    "harmless",
    [
        {"n": 1},
        {"parallel_tool_calls": True},
        {"parallel_tool_calls": False},
        {"tools": [], "tool_choice": "none"},
        {"tools": None, "tool_choice": "auto", "functions": [], "function_call": "auto"},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
        {"logprobs": False, "top_logprobs": 0},
        {"store": False, "metadata": {}, "service_tier": "auto"},
        {"service_tier": "default", "verbosity": "medium", "prompt_cache_retention": "in_memory"},
        {"stream_options": None, "seed": None, "stop": None},
        {"stream": True, "stream_options": {"include_obfuscation": False, "continuous_usage_stats": False}},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": None}},
    ],
)
def test_what_is_done_anyway_may_be_asked_for(harmless: dict[str, Any]) -> None:
    validate(ChatRequest, {**CHAT, **harmless})


@pytest.mark.parametrize(
    ("asked", "param", "message"),
    [
        ({"n": 2}, "n", "Only n=1 is supported here."),
        ({"n": True}, "n", "Only n=1 is supported here."),
        ({"store": True}, "store", "Only store=false is supported here."),
        ({"response_format": {"type": "json_object"}}, "response_format", 'Only response_format={"type":"text"} is'),
        ({"service_tier": "flex"}, "service_tier", 'Only service_tier="auto" or "default" is supported here.'),
        ({"reasoning_effort": "low"}, "reasoning_effort", "'reasoning_effort' is not supported here."),
        ({"metadata": {"a": "b"}}, "metadata", "'metadata' is not supported here."),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "'stream_options.include_obfuscation' is not supported here.",
        ),
        ({"stream": True, "stream_options": {"else": False}}, "stream_options.else", "Unknown parameter"),
        ({"top_logprobs": 1}, "top_logprobs", "'top_logprobs' needs 'logprobs' to be true."),
    ],
)
def test_anything_else_is_refused_by_name(asked: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        validate(ChatRequest, {**CHAT, **asked})
    assert caught.value.param == param
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("cause", ["tools", "functions"])
def test_what_comes_with_tools_is_not_blamed_before_them(cause: str) -> None:
    tools = {"n": 2, "parallel_tool_calls": 1, "tool_choice": "required", "function_call": {}, cause: [{}]}
    with pytest.raises(BadRequestError) as caught:
        validate(ChatRequest, {**CHAT, **tools, "messages": [{"role": "tool", "content": "x"}]})
    assert caught.value.param == cause
