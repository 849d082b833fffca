"""Plain bodies: whatever passes is valid by the full rules, and means the same by them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.openai.plain import plain
from baton_serve.core.protocol.openai.requests import (
    MAX_PRIORITY,
    MAX_STOP_CHARS,
    ChatRequest,
    CompletionRequest,
    simplify,
    validate,
)

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "x"}

NUMBERS = st.sampled_from(
    [-101, -2, -1, 0, 1, 2, 3, 20, -2.5, -1.0, 0.0, 0.5, 1.0, 2.0, 2.5, 2**31, 2**63, -(2**63) - 1, 2**70]
)
ANYTHING = st.one_of(NUMBERS, st.none(), st.booleans(), st.sampled_from(["", "a", "x" * 600]), st.just([]), st.just({}))
#: Values near the bounds, and of all types.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["m", ""]) | ANYTHING,
    "stream": ANYTHING,
    "stop": ANYTHING | st.lists(st.sampled_from(["a", "", "x" * (MAX_STOP_CHARS + 1), 1]), max_size=6),
    "n": ANYTHING,
    "priority": ANYTHING | st.sampled_from([MAX_PRIORITY, MAX_PRIORITY + 1, -MAX_PRIORITY, -MAX_PRIORITY - 1]),
    "user": ANYTHING | st.sampled_from(["é" * 512, "é" * 513]),
    "kv_transfer_params": st.just({"do_remote_decode": True}) | st.none(),
    "unknown": ANYTHING,
    "stream_options": ANYTHING
    | st.fixed_dictionaries({"include_usage": ANYTHING}, optional={"continuous_usage_stats": ANYTHING}),
    "metadata": ANYTHING | st.dictionaries(st.sampled_from(["a", "k" * 65]), ANYTHING | st.just("v" * 513), max_size=2),
    "documents": ANYTHING | st.lists(st.dictionaries(st.sampled_from(["a"]), ANYTHING), max_size=2),
    "service_tier": ANYTHING | st.sampled_from(["flex", "best"]),
    "verbosity": ANYTHING | st.sampled_from(["low", "max"]),
    "bad_words": ANYTHING | st.lists(st.sampled_from(["a", "", "x" * 257]) | ANYTHING, max_size=3),
    "stop_token_ids": ANYTHING | st.lists(ANYTHING, max_size=3),
    "allowed_token_ids": ANYTHING | st.lists(ANYTHING, max_size=3),
} | dict.fromkeys(
    (
        *("max_tokens", "max_completion_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty"),
        *("seed", "top_k", "min_p", "ignore_eos", "safety_identifier", "min_tokens", "logprobs", "top_logprobs"),
        *(
            "echo",
            "prompt_logprobs",
            "tools",
            "response_format",
            "structured_outputs",
            "cache_salt",
            "prompt_cache_key",
            "repetition_penalty",
            "return_token_ids",
        ),
        *("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens"),
        *("return_tokens_as_token_ids", "add_generation_prompt", "return_token_ids"),
    ),
    ANYTHING,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "developer", "tool", 1])},
        optional={
            "content": st.sampled_from(["", "x", None, 1, [], [{"type": "text", "text": "x"}]]),
            "name": ANYTHING,
            "refusal": ANYTHING,
            "tool_calls": ANYTHING,
            "other": ANYTHING,
        },
    ),
    max_size=3,
)
PROMPTS = st.sampled_from(["", "x", ["x"], ["x", "y"], [1, 2], [], [-1], [True], [1.0], [[1, 2]], None, 5])


def bodies(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Mostly with few fields, so that many are valid."""
    few = st.lists(st.sampled_from(sorted(VALUES)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: VALUES[name] for name in names})
    )
    return st.builds(lambda more, own: {"model": "m", **own, **more}, few, st.fixed_dictionaries(fields))


def check(body: dict[str, Any], kind: type[ChatRequest] | type[CompletionRequest]) -> None:
    found = plain(body, chat=kind is ChatRequest)
    if found is None:
        return
    request = validate(kind, copy.deepcopy(body))  # type: ignore[type-var]
    for name in ("model", "stream", "include_usage", "max_new_tokens", "priority", "user", "safety_identifier"):
        assert getattr(found, name) == getattr(request, name), name
    for name in ("usage_in_chunks", "return_token_ids"):
        assert getattr(found, name, False) == getattr(request, name), name
    simplified = copy.deepcopy(body)
    simplify(request, simplified)
    assert simplified == body, "workers are sent it as it is"


@given(bodies(messages=MESSAGES))
def test_a_plain_chat_is_a_chat(body: dict[str, Any]) -> None:
    check(body, ChatRequest)


@given(bodies(prompt=PROMPTS))
def test_a_plain_completion_is_a_completion(body: dict[str, Any]) -> None:
    check(body, CompletionRequest)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"max_tokens": 5, "temperature": 0, "top_p": 1, "seed": 2**63 - 1, "stop": ["a", "b"], "n": 1},
        {"temperature": 0.7, "presence_penalty": -2, "frequency_penalty": 2, "user": "u", "top_k": -1, "min_p": 0.1},
        {"stop_token_ids": [5], "bad_words": ["a"], "include_stop_str_in_output": True, "skip_special_tokens": False},
        {
            "stream": True,
            "return_token_ids": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "cache_salt": "s",
        },
        {"metadata": {"a": "b"}, "service_tier": "auto", "verbosity": "low", "prompt_cache_key": "k"},
        {"temperature": None, "stop": None, "max_tokens": None, "ignore_eos": True, "priority": -MAX_PRIORITY},
    ],
)
def test_bodies_that_clients_send_every_day_are_plain(more: dict[str, Any]) -> None:
    assert plain({**CHAT, **more}, chat=True) is not None
    assert plain({**TEXT, **more}, chat=False) is not None
    check({**CHAT, **more}, ChatRequest)
    check({**TEXT, **more}, CompletionRequest)


@pytest.mark.parametrize(
    "more",
    [
        {"stream_options": {"include_usage": True}},
        {"kv_transfer_params": {"do_remote_decode": True}},
        {"kv_transfer_params": None},
        {"max_tokens": True},
        {"temperature": "1"},
        {"stream": 1},
        {"n": True},
        {"logprobs": "1"},
        {"min_tokens": 2, "max_tokens": 1},
        {"metadata": {"a": 1}},
    ],
)
def test_all_other_bodies_are_left_to_the_full_rules(more: dict[str, Any]) -> None:
    assert plain({**CHAT, **more}, chat=True) is None
    assert plain({**TEXT, **more}, chat=False) is None
