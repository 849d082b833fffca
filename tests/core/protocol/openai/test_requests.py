"""Validation: what one bad body may cost, and that the right thing is blamed."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.objects import MAX_KEYS
from baton_serve.core.protocol.openai.plain import plain
from baton_serve.core.protocol.openai.requests import MAX_STOP_CHARS, ChatRequest, CompletionRequest, simplify, validate

MANY = 10_000
#: A union complains once for each of its branches.
MAX_COMPLAINTS = 2

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TEXT = {"model": "m", "prompt": "x"}
WIDE = {f"k{i}": 1 for i in range(MANY)}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, {**CHAT, "messages": [5] * MANY}),
        (ChatRequest, {**CHAT, "messages": [{"role": "user", "content": [5] * MANY}]}),
        (ChatRequest, {**CHAT, "messages": [WIDE]}),
        (ChatRequest, {**CHAT, "messages": [{"role": "user", "content": [WIDE]}]}),
        (ChatRequest, {**CHAT, "stop": [5] * MANY}),
        (ChatRequest, {**CHAT, "stream_options": WIDE}),
        (ChatRequest, {**CHAT, **WIDE}),
        (CompletionRequest, {**TEXT, "prompt": [-1] * MANY}),
        (CompletionRequest, {**TEXT, "prompt": [1, *["a"] * MANY]}),
    ],
)
def test_the_number_of_complaints_does_not_grow_with_the_body(kind: Any, body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    assert caught.value.error_count() <= MAX_COMPLAINTS
    with pytest.raises(BadRequestError):
        validate(kind, body)


def test_one_message_complains_about_its_own_fields_only() -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({**CHAT, "messages": [{}] * MANY})
    assert [error["loc"] for error in caught.value.errors()] == [("messages", 0, "role"), ("messages", 0, "content")]


def test_a_large_logit_bias_is_refused_before_its_values_are_looked_at() -> None:
    with pytest.raises(BadRequestError) as caught:
        validate(ChatRequest, {**CHAT, "logit_bias": WIDE})
    assert caught.value.code == "object_above_max_properties"


def test_too_many_keys_are_named_as_such() -> None:
    with pytest.raises(BadRequestError) as caught:
        validate(ChatRequest, {**CHAT, "messages": [WIDE]})
    assert (caught.value.param, caught.value.code) == ("messages[0]", "object_above_max_properties")
    assert len(ChatRequest.model_fields) < MAX_KEYS


def test_an_empty_prompt_is_too_short_and_not_of_another_type() -> None:
    with pytest.raises(BadRequestError) as caught:
        validate(CompletionRequest, {**TEXT, "prompt": []})
    assert (caught.value.param, caught.value.code) == ("prompt", "empty_array")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "seed", "top_k", "min_tokens", "priority"])
def test_an_integer_may_be_written_as_a_decimal(name: str) -> None:
    """Some languages have one type of numbers. What workers are sent is an integer."""
    body = {**CHAT, name: 64.0}
    request = validate(ChatRequest, body)
    simplify(request, body)
    assert getattr(request, name) == body[name] == 64 and type(body[name]) is int
    for wrong in (64.5, "64", True, 2.0**70):
        with pytest.raises(BadRequestError) as caught:
            validate(ChatRequest, {**CHAT, name: wrong})
        assert caught.value.param == name


@pytest.mark.parametrize("temperature", [2.5, 100, 1e300])
def test_a_temperature_has_no_upper_bound(temperature: float) -> None:
    assert validate(ChatRequest, {**CHAT, "temperature": temperature}).temperature == temperature
    assert plain({**CHAT, "temperature": temperature}, chat=True) is not None


def test_as_many_stop_strings_as_editors_send_are_taken() -> None:
    """How many they may be is a setting, and checked with the other limits of a body."""
    stop = [f"<{number}>" for number in range(12)]
    assert validate(ChatRequest, {**CHAT, "stop": stop}).stop_strings == stop
    assert plain({**CHAT, "stop": stop}, chat=True) is not None


def test_a_stop_string_is_bounded() -> None:
    assert validate(ChatRequest, {**CHAT, "stop": ["a", "b" * MAX_STOP_CHARS]}).stop_strings[1]
    for stop in ("b" * (MAX_STOP_CHARS + 1), ["a", "b" * (MAX_STOP_CHARS + 1)]):
        with pytest.raises(BadRequestError) as caught:
            validate(ChatRequest, {**CHAT, "stop": stop})
        assert (caught.value.param, caught.value.code) == ("stop", "string_above_max_length")
