"""From a request for a response to a chat, and what is refused of it."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.core.protocol.errors import ApiError, BadRequestError
from baton_serve.router.dialects.responses.translation import ResponseTranslation
from tests.kits.dialects.chats import whole, whole_call
from tests.kits.strict_types import response_of

ID = "ab" * 16
FUNCTION = {"type": "function", "name": "get", "parameters": {"type": "object"}, "strict": True}
OTHER = {"type": "function", "name": "put"}
CHAT_FUNCTION = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}, "strict": True}}
SCHEMA = {"type": "json_schema", "name": "s", "schema": {"type": "object"}, "strict": True}


def translation(**more: Any) -> ResponseTranslation:
    return ResponseTranslation({"model": "m", "input": "hi", **more}, ID)


def chat(**more: Any) -> dict[str, Any]:
    return translation(**more).body


def messages(*items: Any, **more: Any) -> list[dict[str, Any]]:
    found = chat(input=list(items), **more)["messages"]
    assert isinstance(found, list)
    return found


# --- the conversation


def test_a_text_is_a_message_of_the_user() -> None:
    assert chat() == {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": False}


def test_instructions_come_first() -> None:
    system = {"role": "system", "content": "Be brief."}
    assert chat(instructions="Be brief.")["messages"] == [system, {"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a"}),
        (
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            {"role": "developer", "content": "a"},
        ),
        (
            {"role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]},
            {"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]},
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "no"},
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": "5"},
            {"role": "tool", "tool_call_id": "c", "content": "5"},
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "5"}]},
            {"role": "tool", "tool_call_id": "c", "content": "5"},
        ),
    ],
)
def test_items_of_the_input_become_messages(item: dict[str, Any], message: dict[str, Any]) -> None:
    assert messages(item) == [message]


def test_an_output_comes_back_as_the_message_that_it_was() -> None:
    """As a client appends it to the conversation, and what came of its calls."""
    message = {
        "content": "Let me see.",
        "reasoning_content": "Hm.",
        "tool_calls": [whole_call(0, "get", '{"a":1}'), whole_call(1, "get", "{}")],
    }
    response = response_of(translation().whole(whole(message, "tool_calls")))
    output = [item.to_dict(exclude_none=True) for item in response.output]
    results = [{"type": "function_call_output", "call_id": f"call_{i}", "output": str(i)} for i in range(2)]
    found = messages({"role": "user", "content": "hi"}, *output, *results)
    assert found == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", **message, "reasoning": "Hm."},
        {"role": "tool", "tool_call_id": "call_0", "content": "0"},
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
    ]


def test_turns_of_the_assistant_are_kept_apart() -> None:
    said = {"role": "assistant", "content": "a"}
    thought = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    called = {"type": "function_call", "call_id": "c", "name": "get", "arguments": "{}"}
    assert messages(said, said) == [said, said]
    assert messages(called, thought, said)[1:] == [{**said, "reasoning_content": "hm", "reasoning": "hm"}]
    assert messages(called, said) == [{**said, "tool_calls": [whole_call(0, "get", "{}") | {"id": "c"}]}]
    assert messages(said, {"role": "user", "content": "b"}, said) == [said, {"role": "user", "content": "b"}, said]


def test_a_summary_stands_for_reasoning_of_which_there_is_no_more() -> None:
    summary = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
    assert messages(summary, {"role": "assistant", "content": "a"})[0]["reasoning_content"] == "hm"
    nothing = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": None}
    assert messages(nothing, {"role": "assistant", "content": "a"}) == [{"role": "assistant", "content": "a"}]


# --- parameters


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            {"max_output_tokens": 5, "temperature": 0, "top_p": 0.5},
            {"max_completion_tokens": 5, "temperature": 0, "top_p": 0.5},
        ),
        ({"tools": [FUNCTION]}, {"tools": [CHAT_FUNCTION]}),
        ({"tools": [OTHER], "parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"tools": [FUNCTION], "tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "get"}},
            {"tool_choice": {"type": "function", "function": {"name": "get"}}},
        ),
        (
            {
                "tools": [FUNCTION, OTHER],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "get"}],
                },
            },
            {"tools": [CHAT_FUNCTION], "tool_choice": "required"},
        ),
        (
            {"text": {"format": SCHEMA, "verbosity": "low"}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        ({"text": {"format": {"type": "text"}}}, {"response_format": {"type": "text"}}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"presence_penalty": 1, "frequency_penalty": -0.5}, {"presence_penalty": 1, "frequency_penalty": -0.5}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"include": ["reasoning.encrypted_content"], "top_logprobs": 0}, {}),
        ({"user": "me", "prompt_cache_key": "k"}, {"user": "me", "prompt_cache_key": "k"}),
        (
            {"priority": -2, "seed": 7, "cache_salt": "s", "top_k": 4},
            {"priority": -2, "seed": 7, "cache_salt": "s", "top_k": 4},
        ),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"stream": True, "stream_options": {"include_obfuscation": False}}, {"stream": True}),
    ],
)
def test_parameters_are_those_of_a_chat(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat(**asked).items() >= expected.items()


def test_the_router_knows_the_parameters_that_it_acts_on() -> None:
    asked = translation(max_output_tokens=5, user="me", priority=3, stream=True).asked
    assert (asked.max_new_tokens, asked.user, asked.priority, asked.stream) == (5, "me", 3, True)
    assert (asked.path, asked.endpoint, asked.prompt_param) == ("/v1/chat/completions", "/v1/responses", "input")
    assert asked.chat and asked.splits and asked.include_usage and not asked.passed_on


@pytest.mark.parametrize(
    "harmless",
    [
        {"store": False, "background": False, "truncation": "disabled", "max_tool_calls": 3},
        {"previous_response_id": None, "conversation": None, "prompt": None, "context_management": []},
        {"metadata": {"a": "b"}, "service_tier": "flex", "prompt_cache_retention": "in_memory"},
        {"reasoning": {"generate_summary": "auto", "context": "auto", "mode": "standard", "effort": None}},
        {"tools": [], "include": [], "text": {}},
        {"tools": None, "top_logprobs": None, "temperature": None},
        {"store": True, "truncation": "auto", "include": ["web_search_call.results"], "prompt_cache_retention": "24h"},
        {"client_metadata": {"turn": "1"}, "access_programs": {"cyber": "standard"}, "service_tier": "ultrafast"},
        {"reasoning": {"summary": "detailed", "context": "all_turns", "mode": "pro", "what_comes_next": 1}},
        {"text": {"verbosity": "terse"}, "stream_options": {"include_obfuscation": True}},
        {
            "context_management": [{"type": "compaction", "compact_threshold": 9}],
            "prompt_cache_options": {"ttl": "12h"},
        },
        {"tools": [{"type": "web_search", "external_web_access": True}, {"type": "image_generation"}]},
        {"tools": [{"type": "a_new_tool", "name": 5}, {"type": "tool_search", "execution": "server"}]},
        {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]},
        {"a_new_parameter": {"deep": [1, 2]}},
    ],
)
def test_parameters_that_ask_for_what_is_done_anyway_change_nothing(harmless: dict[str, Any]) -> None:
    assert chat(**harmless) == chat()


def test_the_response_repeats_what_was_asked() -> None:
    asked = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "max_output_tokens": 9,
        "max_tool_calls": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_logprobs": 2,
        "tools": [FUNCTION, OTHER],
        "tool_choice": {"type": "function", "name": "get"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "user": "me",
        "safety_identifier": "them",
        "prompt_cache_key": "k",
        "presence_penalty": 0.5,
        "frequency_penalty": 1,
    }
    body = translation(**asked).whole(whole({"content": "a"}))
    found = response_of(body).to_dict()
    assert found["text"] == {"format": {"type": "text"}}
    asked["reasoning"] = {"effort": "low", "summary": None}
    asked["tools"] = [
        {"description": None, **FUNCTION},
        {"description": None, "parameters": None, "strict": None, **OTHER},
    ]
    assert {name: found[name] for name in asked} == asked
    assert (found["store"], found["background"], found["truncation"]) == (False, False, "disabled")
    text = {"format": SCHEMA, "verbosity": "low"}
    found = response_of(translation(text=text).whole(whole({"content": "{}"}))).to_dict()
    assert found["text"] == text


def test_the_response_says_what_was_not_done() -> None:
    asked = {"store": True, "truncation": "auto", "service_tier": "priority", "reasoning": {"summary": "auto"}}
    asked |= {"tools": [FUNCTION, {"type": "web_search"}]}
    found = response_of(translation(**asked).whole(whole({"content": "a"}))).to_dict()
    assert (found["store"], found["truncation"], found["service_tier"]) == (False, "disabled", "default")
    assert found["reasoning"] == {"effort": None, "summary": None}
    assert [tool["type"] for tool in found["tools"]] == ["function"]


# --- refused


@pytest.mark.parametrize(
    ("asked", "param", "code"),
    [
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"max_tokens": 5}, "max_tokens", "unknown_parameter"),
        ({"stop": "a"}, "stop", "unknown_parameter"),
        ({"n": 2}, "n", "unknown_parameter"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "empty_array"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": [5]}, "input[0]", "invalid_type"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "unsupported_parameter"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0]", "unsupported_parameter"),
        ({"input": [{"type": "file_search_call", "id": "x"}]}, "input[0]", "unsupported_parameter"),
        ({"input": [{"type": "a_new_item", "id": "x"}]}, "input[0]", "unsupported_parameter"),
        ({"input": [{"type": []}]}, "input[0].type", "invalid_value"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "missing_required_parameter"),
        (
            {"input": [{"type": "function_call_output", "output": "a"}]},
            "input[0].call_id",
            "missing_required_parameter",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
            "unsupported_parameter",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
            "missing_required_parameter",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_audio"}]}]},
            "input[0].output[0]",
            "unsupported_parameter",
        ),
        ({"tools": [FUNCTION, {"type": "mcp", "server_label": "x"}]}, "tools[1]", "unsupported_parameter"),
        ({"tools": [{"type": "file_search"}]}, "tools[0]", "unsupported_parameter"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "invalid_value"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]},
            "tools[0].tools[0]",
            "unsupported_parameter",
        ),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{**FUNCTION, "parameters": {"type": "array"}}]}, "tools[0].parameters", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "invalid_value"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice", "unsupported_parameter"),
        (
            {
                "tools": [FUNCTION],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
            },
            "tool_choice",
            "invalid_value",
        ),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm", "unsupported_parameter"),
        ({"moderation": {"model": "x"}}, "moderation", "unsupported_parameter"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort", "invalid_value"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name", "missing_required_parameter"),
        ({"text": {"format": {"type": "text", "name": "x"}}}, "text.format", "invalid_value"),
        ({"text": {"format": SCHEMA}, "tools": [FUNCTION], "tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
        ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"seed": 1.5}, "seed", "invalid_type"),
    ],
)
def test_the_parameter_for_which_a_request_is_refused_is_named(asked: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        translation(**asked)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, param, code), error.message


def test_a_type_that_is_refused_is_named() -> None:
    with pytest.raises(BadRequestError, match="tools of type 'mcp' are not supported here"):
        translation(tools=[{"type": "mcp"}])
    with pytest.raises(BadRequestError, match="'input_image' are not supported here"):
        translation(input=[{"role": "user", "content": [{"type": "input_image"}]}])
