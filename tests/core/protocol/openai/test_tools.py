"""Tools, their choice, and calls in the history of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.requests import ChatRequest, simplify, validate
from baton_serve.core.protocol.openai.tokenize import TokenizeChat, validate_tokenizing
from baton_serve.core.protocol.openai.tools import MAX_TOOLS

TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}, "strict": True}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get", "arguments": '{"a": 1}'}}
NAMED = {"type": "function", "function": {"name": "get"}}
ASKED = {"role": "user", "content": "x"}


def checked(*messages: dict[str, Any], **more: Any) -> ChatRequest:
    return validate(ChatRequest, {"model": "m", "messages": list(messages or (ASKED,)), **more})


@pytest.mark.parametrize("choice", ["none", "auto", "required", NAMED, None])
def test_tools_are_taken_with_each_tool_choice(choice: Any) -> None:
    assert checked(tools=[TOOL], tool_choice=choice).tool_objects == [TOOL]


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("choice", ["none", "auto", None])
def test_an_empty_list_of_tools_means_no_tools(tools: Any, choice: Any) -> None:
    assert checked(tools=tools, tool_choice=choice, parallel_tool_calls=False).tool_objects is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"tools": [TOOL], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "put"}}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "more": 1}}]}, "tools[0].function.more"),
        *[
            (
                {"tools": [TOOL, {"type": "function", "function": {"name": "a", "parameters": {"type": kind}}}]},
                "tools[1].function.parameters",
            )
            for kind in ("string", "array", None, ["object", "null"], {})
        ],
        ({"tools": [TOOL] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": [TOOL], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_the_parameter_that_is_wrong_about_tools_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        checked(**body)
    assert caught.value.param == param


@pytest.mark.parametrize("parameters", [{}, {"properties": {"a": {}}}, {"type": "object"}, None])
def test_parameters_of_a_function_need_not_say_that_they_are_an_object(parameters: Any) -> None:
    """One that does not say so is one too."""
    checked(tools=[{"type": "function", "function": {"name": "a", "parameters": parameters}}])


def test_a_message_with_calls_cannot_be_continued() -> None:
    going_on = {"continue_final_message": True, "add_generation_prompt": False}
    said = {"role": "assistant", "content": "So", "tool_calls": [CALL]}
    assert checked(ASKED, {**said, "tool_calls": None}, **going_on).continue_final_message
    assert checked(ASKED, said, **{**going_on, "continue_final_message": False})
    with pytest.raises(BadRequestError, match="calls") as caught:
        checked(ASKED, said, **going_on)
    assert caught.value.param == "continue_final_message"
    with pytest.raises(BadRequestError):
        validate_tokenizing(TokenizeChat, {"messages": [ASKED, said], **going_on})


def test_history_is_kept_as_templates_want_it() -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"}
    answered = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "4"}]}
    request = checked(ASKED, said, answered)
    assert [message.for_template() for message in request.messages] == [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get", "arguments": {"a": 1}}}],
            "reasoning_content": "hm",
            "reasoning": "hm",
        },
        {"role": "tool", "content": [{"type": "text", "text": "4"}], "tool_call_id": "call_1"},
    ]


def test_calls_and_results_in_the_history_reach_the_worker() -> None:
    said = {"role": "assistant", "tool_calls": [CALL], "vendor": 1}
    answered = {"role": "tool", "tool_call_id": "call_1", "content": "4", "vendor": 2}
    body = {"model": "m", "messages": [ASKED, said, answered]}
    simplify(validate(ChatRequest, body), body)
    assert body["messages"] == [
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4"},
    ]
    again = validate(ChatRequest, body)
    assert again.messages[1].tool_calls is not None


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "4"}, "messages[0]"),
        ({"role": "user", "content": "", "tool_calls": [CALL]}, "messages[0]"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}, "messages[0].tool_calls[0].function.name"),
        ({"role": "user", "content": "", "function_call": {"name": "get"}}, "messages[0].function_call"),
    ],
)
def test_a_wrong_message_in_the_history_is_refused(message: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        checked(message)
    assert caught.value.param == param


@pytest.mark.parametrize("arguments", ["", "null", "{", '{"a": "cut o', "[]", "[1]", "5", '"x"', None, [], 5, True])
def test_arguments_that_are_no_object_do_not_end_the_conversation(arguments: Any) -> None:
    """They come from a model, so they will be in the history of all requests that follow."""
    said = {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "get", "arguments": arguments}}]}
    body = {"model": "m", "messages": [ASKED, said]}
    for _ in ("router", "worker"):
        request = validate(ChatRequest, body)
        assert request.messages[1].for_template()["tool_calls"][0]["function"] == {"name": "get", "arguments": {}}
        simplify(request, body)
    assert isinstance(body["messages"][1]["tool_calls"][0]["function"]["arguments"], str)  # type: ignore[index]


def test_arguments_may_be_an_object_itself() -> None:
    said = {"role": "assistant", "tool_calls": [{"id": None, "function": {"name": "get", "arguments": {"a": 1}}}]}
    assert checked(ASKED, said).messages[1].for_template()["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_a_function_of_the_older_api_is_a_tool() -> None:
    said = {"role": "assistant", "content": None, "function_call": {"name": "get", "arguments": '{"a": 1}'}}
    answered = {"role": "function", "name": "get", "content": "4"}
    body = {"model": "m", "messages": [ASKED, said, answered]}
    for _ in ("router", "worker"):
        request = validate(ChatRequest, body)
        call, result = (message.for_template() for message in request.messages[1:])
        assert call["tool_calls"] == [
            {"id": "call_get", "type": "function", "function": {"name": "get", "arguments": {"a": 1}}}
        ]
        assert result == {"role": "tool", "content": "4", "name": "get", "tool_call_id": "call_get"}
        simplify(request, body)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool"]  # type: ignore[index]


def test_marks_for_anthropics_cache_are_not_shown_to_the_model() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    assert checked(tools=[{**TOOL, "function": {**TOOL["function"], **mark}, **mark}]).tool_objects == [TOOL]  # type: ignore[dict-item]
