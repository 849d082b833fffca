"""Messages as clients send them back: which fields are taken, which are dropped, and which are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.requests import ChatRequest, CompletionRequest, simplify, validate

USER = {"role": "user", "content": "hi"}
#: Every field of an answer of OpenAI's.
ANSWER = {
    "role": "assistant",
    "content": "yes",
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
    "tool_calls": None,
}


def plain(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """What workers are sent; as JSON that came in, it is valid once more."""
    body: dict[str, Any] = {"model": "m", "messages": list(messages)}
    simplify(validate(ChatRequest, body), body)
    validate(ChatRequest, body)
    sent: list[dict[str, Any]] = body["messages"]
    return sent


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        (USER, USER),
        (ANSWER, {"role": "assistant", "content": "yes"}),
        ({**ANSWER, "name": "b"}, {"role": "assistant", "content": "yes", "name": "b"}),
        ({**ANSWER, "name": None, "tool_calls": []}, {"role": "assistant", "content": "yes"}),
        ({**ANSWER, "content": None}, {"role": "assistant", "content": ""}),
        ({"role": "user", "content": None}, {"role": "user", "content": ""}),
        ({"role": "tool", "content": None, "tool_call_id": "1"}, {"role": "tool", "content": "", "tool_call_id": "1"}),
        ({"role": "assistant"}, {"role": "assistant", "content": ""}),
        ({**ANSWER, "content": None, "refusal": "no"}, {"role": "assistant", "content": "no"}),
        (
            {**ANSWER, "reasoning_content": "hm", "reasoning": {"a": 1}},
            {"role": "assistant", "content": "yes", "reasoning_content": "hm", "reasoning": "hm"},
        ),
        (
            {**ANSWER, "reasoning_content": None, "reasoning": "hm"},
            {"role": "assistant", "content": "yes", "reasoning_content": "hm", "reasoning": "hm"},
        ),
        ({"role": "developer", "content": "be brief"}, {"role": "developer", "content": "be brief"}),
        ({**USER, "cache_control": {"type": "ephemeral"}}, USER),
        (
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "refusal": "at all"},
            {"role": "assistant", "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "at all"}]},
        ),
    ],
)
def test_messages_of_clients_are_taken_and_made_plain(message: dict[str, Any], sent: dict[str, Any]) -> None:
    assert plain(message) == [sent]


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ({**ANSWER, "tool_calls": [{"id": "1"}]}, "messages[1].tool_calls[0].function", "missing_required_parameter"),
        ({"role": "user", "content": "", "function_call": {}}, "messages[1].function_call", "unsupported_parameter"),
        ({**ANSWER, "audio": {"id": "1"}}, "messages[1].audio", "unsupported_parameter"),
        ({**ANSWER, "refusal": 5}, "messages[1].refusal", "invalid_type"),
        ({"role": "critic", "content": "4"}, "messages[1].role", "invalid_value"),
        ({"role": "user"}, "messages[1].content", "missing_required_parameter"),
        ({"content": None}, "messages[1].role", "missing_required_parameter"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
            "messages[1].content[0]",
            "unsupported_parameter",
        ),
        ({"role": "assistant", "content": [{"type": "refusal"}]}, "messages[1].content[0].type", "invalid_value"),
    ],
)
def test_wrong_fields_of_messages_are_refused_by_name(message: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        plain(USER, message)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_a_picture_is_refused_by_the_name_of_its_type() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    with pytest.raises(BadRequestError, match="parts of type 'image_url' are not supported here"):
        plain({"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]})


@pytest.mark.parametrize(
    ("prompt", "means"), [("hi", "hi"), (["hi"], "hi"), ([[1, 2]], [1, 2]), ([1, 2], [1, 2]), ([""], "")]
)
def test_a_list_of_one_prompt_is_a_prompt(prompt: Any, means: Any) -> None:
    body = {"model": "m", "prompt": prompt, "logprobs": False}
    request = validate(CompletionRequest, body)
    assert (request.prompt, request.num_logprobs) == (means, None)
    simplify(request, body)
    assert body == {"model": "m", "prompt": means}


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], ["a", 1]])
def test_a_list_of_two_prompts_is_refused(prompt: Any) -> None:
    with pytest.raises(BadRequestError, match="Only one prompt in a request is supported here, got 2") as caught:
        validate(CompletionRequest, {"model": "m", "prompt": prompt})
    assert (caught.value.param, caught.value.code) == ("prompt", "unsupported_parameter")


@pytest.mark.parametrize("prompt", [[["a"]], [[[1]]], [None], [{}], [[]]])
def test_the_element_of_a_list_of_one_has_to_be_a_prompt(prompt: Any) -> None:
    with pytest.raises(BadRequestError) as caught:
        validate(CompletionRequest, {"model": "m", "prompt": prompt})
    assert (caught.value.param or "").startswith("prompt")
