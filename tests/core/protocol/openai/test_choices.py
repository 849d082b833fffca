"""``n``, ``best_of`` and lists of prompts: what they ask for, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.choices import MAX_BEST_OF, MAX_N, Choices, take_choices
from baton_serve.core.protocol.openai.requests import ChatRequest, CompletionRequest, validate

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "x"}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, None),
        ({"n": 1, "best_of": 1}, None),
        ({"n": None, "best_of": None}, None),
        ({"n": 3}, Choices(3, 3)),
        ({"best_of": 3}, Choices(1, 3)),
        ({"n": 2, "best_of": 3}, Choices(2, 3)),
        ({"prompt": ["x"]}, None),
        ({"prompt": [1, 2]}, None),
        ({"prompt": [[1, 2]]}, None),
        ({"prompt": ["x", ""]}, Choices(prompts=("x", ""))),
        ({"prompt": [[1], [2, 3]], "n": 2}, Choices(2, 2, ([1], [2, 3]))),
    ],
)
def test_choices_are_those_that_n_best_of_and_the_prompts_ask_for(asked: dict[str, Any], found: Choices | None) -> None:
    body = {**TEXT, **asked}
    assert take_choices(body, chat=False) == found
    assert "n" not in body and "best_of" not in body
    request = validate(CompletionRequest, body)
    assert request.prompt == (found.prompts[0] if found and found.prompts else [1, 2] if "[1" in str(asked) else "x")


def test_a_chat_has_one_prompt() -> None:
    body = {**CHAT, "n": 2}
    assert take_choices(body, chat=True) == Choices(2, 2)
    validate(ChatRequest, body)


@pytest.mark.parametrize(
    ("asked", "param", "code"),
    [
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"n": MAX_N + 1}, "n", "integer_above_max_value"),
        ({"n": 1.5}, "n", "invalid_type"),
        ({"n": True}, "n", "invalid_type"),
        ({"best_of": MAX_BEST_OF + 1}, "best_of", "integer_above_max_value"),
        ({"n": 3, "best_of": 2}, "best_of", "invalid_value"),
        ({"best_of": 2, "stream": True}, "best_of", "invalid_value"),
        ({"prompt": ["x", 1]}, "prompt[1]", "invalid_type"),
        ({"prompt": [[1], []]}, "prompt[1]", "empty_array"),
        ({"prompt": [[1], [-1]]}, "prompt[1][0]", "integer_below_min_value"),
        ({"prompt": [[1], "x"]}, "prompt[0]", "invalid_type"),
    ],
)
def test_malformed_and_contradictory_choices_are_refused(asked: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        take_choices({**TEXT, **asked}, chat=False)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_a_chat_has_no_best_of() -> None:
    body = {**CHAT, "best_of": 2}
    take_choices(body, chat=True)
    with pytest.raises(BadRequestError, match="best_of"):
        validate(ChatRequest, body)


@pytest.mark.parametrize("asked", [{"n": 2}, {"best_of": 2}, {"prompt": ["x", "y"]}])
def test_a_worker_computes_one_answer(asked: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as caught:
        validate(CompletionRequest, {**TEXT, **asked})
    assert caught.value.code == "unsupported_parameter"
