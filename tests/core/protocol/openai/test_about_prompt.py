"""Requests that are about their prompts: what they may ask for, and what excludes what."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.plain import plain
from baton_serve.core.protocol.openai.requests import ChatRequest, CompletionRequest, validate

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TEXT = {"model": "m", "prompt": "x"}


@pytest.mark.parametrize(
    ("more", "num_prompt_logprobs", "is_about_prompt"),
    [
        ({}, None, False),
        ({"logprobs": 5}, None, False),
        ({"echo": False, "prompt_logprobs": None}, None, False),
        ({"echo": True}, None, True),
        ({"echo": True, "logprobs": 0}, 0, True),
        ({"echo": True, "logprobs": 20, "max_tokens": 0}, 20, True),
        ({"prompt_logprobs": 0, "max_tokens": 0}, 0, True),
        ({"prompt_logprobs": 3, "logprobs": 5}, 3, True),
        ({"prompt_logprobs": 3, "logprobs": 5, "echo": True}, 5, True),
        ({"prompt_logprobs": 7, "logprobs": 5, "echo": True}, 7, True),
        ({"echo": True, "logprobs": 1, "stream": True}, 1, True),
    ],
)
def test_completions_say_whether_they_are_about_their_prompts(
    more: dict[str, Any], num_prompt_logprobs: int | None, is_about_prompt: bool
) -> None:
    request = validate(CompletionRequest, {**TEXT, **more})
    assert request.num_prompt_logprobs == num_prompt_logprobs
    assert request.is_about_prompt is is_about_prompt


def test_chats_say_whether_they_are_about_their_prompts() -> None:
    request = validate(ChatRequest, {**CHAT, "prompt_logprobs": 4, "logprobs": True, "top_logprobs": 9, "echo": False})
    assert (request.num_prompt_logprobs, request.num_logprobs, request.is_about_prompt) == (4, 9, True)
    assert not validate(ChatRequest, CHAT).is_about_prompt


@pytest.mark.parametrize("more", [{"echo": True}, {"prompt_logprobs": 0}, {"max_tokens": 0, "echo": True}])
def test_a_completion_about_its_prompt_is_not_plain(more: dict[str, Any]) -> None:
    assert plain({**TEXT, **more}, chat=False) is None


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({**TEXT, "max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({**TEXT, "max_tokens": 0, "logprobs": 1}, "max_tokens", "integer_below_min_value"),
        ({**TEXT, "max_tokens": -1, "echo": True}, "max_tokens", "integer_below_min_value"),
        ({**TEXT, "max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens", "invalid_value"),
        ({**TEXT, "prompt_logprobs": -1}, "prompt_logprobs", "integer_below_min_value"),
        ({**TEXT, "prompt_logprobs": 21}, "prompt_logprobs", "integer_above_max_value"),
        ({**TEXT, "prompt_logprobs": True}, "prompt_logprobs", "invalid_type"),
        ({**TEXT, "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "invalid_value"),
        ({**TEXT, "prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "invalid_value"),
        ({**TEXT, "echo": True, "logprobs": 21}, "logprobs", "integer_above_max_value"),
        ({**TEXT, "echo": 1}, "echo", "invalid_type"),
        ({**TEXT, "echo": True, "suffix": "y"}, "suffix", "invalid_value"),
        ({**CHAT, "echo": True}, "echo", "unsupported_parameter"),
        ({**CHAT, "max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        (
            {**CHAT, "max_completion_tokens": 0, "prompt_logprobs": 1},
            "max_completion_tokens",
            "integer_below_min_value",
        ),
        ({**CHAT, "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "invalid_value"),
    ],
)
def test_requests_that_ask_wrongly_about_their_prompts_are_refused(body: dict[str, Any], param: str, code: str) -> None:
    kind: Any = ChatRequest if "messages" in body else CompletionRequest
    with pytest.raises(BadRequestError) as caught:
        validate(kind, body)
    assert (caught.value.param, caught.value.code) == (param, code)
