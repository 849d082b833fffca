"""Parameters that are not supported: taken with a value that asks for what is done anyway, else refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.requests import ChatRequest, validate

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
        {"service_tier": "flex", "verbosity": "low", "prompt_cache_key": "k" * 512, "logits_processors": []},
        {"metadata": {f"{i:064}": "v" * 512 for i in range(16)}},
        {"metadata": None, "service_tier": None, "verbosity": None, "prompt_cache_key": None},
        {"stream_options": None, "seed": None, "stop": None},
        {"length_penalty": 1.0, "use_beam_search": False, "early_stopping": False, "watermarking": False},
        {"length_penalty": 1, "include_reasoning": True, "truncation_side": "left", "stream_interval": 1, "n": 1.0},
        {"vllm_xargs": {}, "mm_processor_kwargs": {}, "media_io_kwargs": {}, "ec_transfer_params": {}},
        {"return_prompt_text": False, "return_token_offsets": False},
        {"stream": True, "stream_options": {"include_obfuscation": False, "continuous_usage_stats": False}},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": None}},
    ],
)
def test_parameters_may_ask_for_what_is_done_anyway(harmless: dict[str, Any]) -> None:
    validate(ChatRequest, {**CHAT, **harmless})


@pytest.mark.parametrize(
    ("asked", "param", "message"),
    [
        ({"n": 2}, "n", "Only n=1 is supported here."),
        ({"n": True}, "n", "Only n=1 is supported here."),
        ({"use_beam_search": True}, "use_beam_search", "Only use_beam_search=false is supported here."),
        ({"use_beam_search": 0}, "use_beam_search", "Only use_beam_search=false is supported here."),
        ({"length_penalty": 2}, "length_penalty", "Only length_penalty=1.0 is supported here."),
        ({"store": True}, "store", "Only store=false is supported here."),
        ({"service_tier": "best"}, "service_tier", "Invalid value for 'service_tier'"),
        ({"verbosity": "silent"}, "verbosity", "Invalid value for 'verbosity'"),
        ({"prompt_cache_key": "k" * 513}, "prompt_cache_key", "Invalid value for 'prompt_cache_key'"),
        ({"prompt_cache_key": 5}, "prompt_cache_key", "Invalid type for 'prompt_cache_key': expected a string"),
        ({"logits_processors": ["x"]}, "logits_processors", "'logits_processors' is not supported here."),
        ({"reasoning_effort": "much"}, "reasoning_effort", "Invalid value for 'reasoning_effort'"),
        ({"metadata": {"a": 1}}, "metadata.a", "Invalid type for 'metadata.a': expected a string"),
        ({"metadata": {"a": "v" * 513}}, "metadata.a", "Invalid value for 'metadata.a'"),
        ({"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 65, "Invalid value for 'metadata."),
        ({"metadata": {str(i): "v" for i in range(17)}}, "metadata", "Invalid value for 'metadata'"),
        ({"metadata": "x"}, "metadata", "Invalid type for 'metadata': expected an object"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "'stream_options.include_obfuscation' is not supported here.",
        ),
        ({"stream": True, "stream_options": {"else": False}}, "stream_options.else", "Unknown parameter"),
        ({"top_logprobs": 1}, "top_logprobs", "'top_logprobs' needs 'logprobs' to be true."),
    ],
)
def test_parameters_that_ask_for_anything_else_are_refused_by_name(
    asked: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        validate(ChatRequest, {**CHAT, **asked})
    assert caught.value.param == param
    assert caught.value.message.startswith(message)


def test_functions_are_blamed_before_the_parameters_that_come_with_them() -> None:
    functions = {"n": 2, "parallel_tool_calls": 1, "tool_choice": "required", "function_call": {}, "functions": [{}]}
    with pytest.raises(BadRequestError) as caught:
        validate(ChatRequest, {**CHAT, **functions, "messages": [{"role": "function", "content": "x"}]})
    assert caught.value.param == "functions"
