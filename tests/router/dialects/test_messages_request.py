"""From a request of Anthropic's to a chat, and what is refused of it."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import Any

import pytest

from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.dialects import objects
from baton_serve.router.dialects.messages.answer import error_body
from baton_serve.router.dialects.messages.translation import CountTranslation, MessageTranslation
from tests.kits.dialects.chats import whole, whole_call
from tests.kits.strict_types import count_of, message_of

ID = "ab" * 16
HI = {"role": "user", "content": "hi"}
TOOL = {"name": "get", "description": "Gets.", "input_schema": {"type": "object", "properties": {}}}
CHAT_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get", "description": "Gets.", "parameters": {"type": "object", "properties": {}}},
}
SCHEMA = {"type": "object", "properties": {}}


def translation(**more: Any) -> MessageTranslation:
    return MessageTranslation({"model": "m", "max_tokens": 2000, "messages": [HI], **more}, ID)


def chat(**more: Any) -> dict[str, Any]:
    return translation(**more).body


def messages(*given: Any, **more: Any) -> list[dict[str, Any]]:
    found = chat(messages=list(given), **more)["messages"]
    assert isinstance(found, list)
    return found


def texts(*given: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in given]


def changed(name: str, kind: str = "tool_addition", tool: Any = None) -> dict[str, Any]:
    """A block of the system's that changes the tools."""
    return {"type": kind, "tool": tool or {"type": "tool_reference", "name": name}}


def with_examples(*examples: Any) -> dict[str, Any]:
    function = CHAT_TOOL["function"]
    return {**CHAT_TOOL, "function": {**function, "parameters": {**function["parameters"], "examples": [*examples]}}}


# --- the conversation


def test_a_text_is_a_message() -> None:
    assert chat() == {"model": "m", "max_tokens": 2000, "messages": [HI], "stream": False}


@pytest.mark.parametrize(
    ("system", "content"), [("Be brief.", "Be brief."), (texts("a"), "a"), (texts("a", "b"), texts("a", "b"))]
)
def test_the_system_prompt_comes_first(system: Any, content: Any) -> None:
    assert messages(HI, system=system) == [{"role": "system", "content": content}, HI]


def test_marks_for_a_cache_are_dropped() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    block = {"type": "text", "text": "hi", **mark}
    found = chat(messages=[{"role": "user", "content": [block]}], system=[block], tools=[{**TOOL, **mark}], **mark)
    assert found == chat(system="hi", tools=[TOOL])


def test_a_message_of_the_system_may_stand_anywhere() -> None:
    system = {"role": "system", "content": texts("a")}
    assert messages(HI, system, HI) == [HI, {"role": "system", "content": "a"}, HI]


def test_results_of_tools_are_messages_of_their_own() -> None:
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": "5"},
        {"type": "tool_result", "tool_use_id": "b", "content": texts("6")},
        {"type": "tool_result", "tool_use_id": "c"},
        {"type": "tool_result", "tool_use_id": "d", "content": "no", "is_error": True},
        {"type": "tool_result", "tool_use_id": "e", "content": texts("x", "y"), "is_error": True},
    ]
    found = messages({"role": "user", "content": [*results, *texts("now", "then")]})
    assert found == [
        {"role": "tool", "tool_call_id": "a", "content": "5"},
        {"role": "tool", "tool_call_id": "b", "content": "6"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "tool", "tool_call_id": "d", "content": "Error: no"},
        {"role": "tool", "tool_call_id": "e", "content": texts("Error: ", "x", "y")},
        {"role": "user", "content": texts("now", "then")},
    ]
    assert [one["role"] for one in messages({"role": "user", "content": [*texts("so"), results[0]]})] == [
        "user",
        "tool",
    ]
    assert messages({"role": "user", "content": []}) == [{"role": "user", "content": ""}]


def test_an_answer_comes_back_as_the_message_that_it_was() -> None:
    """As a client appends it to the conversation."""
    message = {
        "content": "Let me see.",
        "reasoning_content": "Hm.",
        "tool_calls": [whole_call(0, "get", '{"a":1}'), whole_call(1, "get", "{}")],
    }
    answer = message_of(translation().whole(whole(message, "tool_calls")))
    content = [block.to_dict(exclude_none=True) for block in answer.content]
    results = [{"type": "tool_result", "tool_use_id": f"call_{i}", "content": str(i)} for i in range(2)]
    found = messages(HI, {"role": "assistant", "content": content}, {"role": "user", "content": results})
    assert found == [
        HI,
        {"role": "assistant", **message, "reasoning": "Hm."},
        {"role": "tool", "tool_call_id": "call_0", "content": "0"},
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
    ]


@pytest.mark.parametrize("content", ["The answer is", texts("The answer", " is")])
def test_an_answer_that_the_client_has_begun_goes_on(content: Any) -> None:
    found = chat(messages=[HI, {"role": "assistant", "content": content}])
    assert (found["add_generation_prompt"], found["continue_final_message"]) == (False, True)


@pytest.mark.parametrize("content", ["", [{"type": "tool_use", "id": "a", "name": "get", "input": {}}], []])
def test_an_answer_that_cannot_be_continued_is_not(content: Any) -> None:
    assert "continue_final_message" not in chat(messages=[HI, {"role": "assistant", "content": content}])
    assert "continue_final_message" not in chat(messages=[HI, {"role": "assistant", "content": "a"}, HI])


def test_a_message_of_the_system_in_between_stays_where_it_is() -> None:
    said = {"type": "mid_conv_system", "content": [*texts("b"), changed("get")]}
    assert messages({"role": "user", "content": [*texts("a"), said, *texts("c")]}) == [
        {"role": "user", "content": "a"},
        {"role": "system", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert messages(HI, {"role": "system", "content": [changed("get")]}) == [HI]


@pytest.mark.parametrize("given", [None, [1], "x", 5, {}])
def test_arguments_that_are_no_object_do_not_end_the_conversation(given: Any) -> None:
    use = {"type": "tool_use", "id": "a", "name": "get", "input": given}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "5"}]}
    (call,) = messages(HI, {"role": "assistant", "content": [use]}, result)[1]["tool_calls"]
    assert call["function"] == {"name": "get", "arguments": "{}"}


def test_redacted_thinking_is_left_out() -> None:
    blocks = [{"type": "redacted_thinking", "data": "x"}, *texts("Yes.")]
    assert messages(HI, {"role": "assistant", "content": blocks}, HI)[1] == {"role": "assistant", "content": "Yes."}


# --- tools that wait


LATER = {**TOOL, "name": "later", "defer_loading": True}
FOUND = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_reference", "tool_name": "later"}]}
CALLED = {"type": "tool_use", "id": "a", "name": "later", "input": {}}


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ([], ["get"]),
        ([{"role": "user", "content": [FOUND]}], ["get", "later"]),
        ([{"role": "assistant", "content": [CALLED]}], ["get", "later"]),
        ([{"role": "system", "content": [changed("later")]}], ["get", "later"]),
        ([{"role": "user", "content": [{"type": "mid_conv_system", "content": [changed("later")]}]}], ["get", "later"]),
        ([{"role": "system", "content": [changed("get", "tool_removal")]}], []),
        ([{"role": "system", "content": [changed("later"), changed("later", "tool_removal")]}], ["get"]),
    ],
)
def test_the_model_is_told_of_a_tool_when_the_conversation_refers_to_it(said: list[Any], names: list[str]) -> None:
    body = {"tools": [TOOL, LATER], "messages": [HI, *said, HI]}
    for found in (chat(**body), CountTranslation({"model": "m", **body}, ID).body):
        assert [tool["function"]["name"] for tool in found.get("tools", ())] == names


def test_a_tool_that_must_be_called_does_not_wait() -> None:
    found = chat(tools=[LATER], tool_choice={"type": "tool", "name": "later"})
    assert [tool["function"]["name"] for tool in found["tools"]] == ["later"]


def test_a_reference_to_a_tool_is_its_name() -> None:
    assert messages(HI, {"role": "user", "content": [FOUND]})[1]["content"] == "later\n"


# --- parameters


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            {"temperature": 0, "top_p": 0.5, "top_k": 4, "stop_sequences": ["a"]},
            {"temperature": 0, "top_p": 0.5, "top_k": 4, "stop": ["a"]},
        ),
        ({"tools": [TOOL]}, {"tools": [CHAT_TOOL]}),
        (
            {"tools": [{**TOOL, "type": "custom", "strict": True, "allowed_callers": ["direct"]}]},
            {"tools": [CHAT_TOOL]},
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get"}},
            {"tool_choice": {"type": "function", "function": {"name": "get"}}},
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"thinking": {"type": "enabled"}}),
        ({"thinking": {"type": "disabled"}}, {"thinking": {"type": "disabled"}}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "max"}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        ),
        (
            {"output_format": {"type": "json_schema", "schema": SCHEMA}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        ),
        ({"tools": [{**TOOL, "input_examples": [{"a": 1}]}]}, {"tools": [with_examples({"a": 1})]}),
        ({"metadata": {"user_id": "me"}}, {"user": "me"}),
        ({"priority": -2, "seed": 7, "cache_salt": "s"}, {"priority": -2, "seed": 7, "cache_salt": "s"}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    ],
)
def test_parameters_are_those_of_a_chat(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat(**asked).items() >= expected.items()


def test_the_router_knows_the_parameters_that_it_acts_on() -> None:
    asked = translation(metadata={"user_id": "me"}, priority=3, stream=True).asked
    assert (asked.max_new_tokens, asked.user, asked.priority, asked.stream) == (2000, "me", 3, True)
    assert (asked.path, asked.endpoint, asked.prompt_param) == ("/v1/chat/completions", "/v1/messages", "messages")
    assert asked.chat and asked.splits and asked.include_usage and asked.usage_in_chunks and not asked.passed_on


@pytest.mark.parametrize(
    "harmless",
    [
        {"thinking": {"type": "adaptive", "display": "summarized"}},
        {"service_tier": "standard_only", "speed": "standard", "metadata": {}},
        {"tools": [], "stop_sequences": [], "system": None, "output_config": {}},
        {"container": None, "context_management": None, "mcp_servers": []},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "speed": "fast"},
        {"betas": ["effort-2025-11-24"], "diagnostics": {"previous_message_id": None}, "of_the_next_version": {"a": 1}},
        {"metadata": {"x": "y"}, "output_config": {"task_budget": {"type": "tokens", "total": 2000}}},
        {"thinking": {"type": "adaptive", "x": 1}},
    ],
)
def test_parameters_that_ask_for_what_is_done_anyway_change_nothing(harmless: dict[str, Any]) -> None:
    assert chat(**harmless) == chat()


def test_unknown_fields_are_named_in_the_log_once_each(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, objects.logger.name)
    monkeypatch.setattr(objects, "_named", set())
    for _ in range(2):
        chat(new="a secret", tools=[{**TOOL, "new": 1}])
    chat(**{f"x{i}": 1 for i in range(40)})
    chat(**{"evil\n": 1}, **{f"y{i}": 1 for i in range(40)})
    assert "MessagesRequest.new," in caplog.text and "Tool.new," in caplog.text and "secret" not in caplog.text
    assert len(caplog.messages) == len(set(caplog.messages)) == objects.MAX_NAMED
    assert all("\n" not in message for message in caplog.messages)


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize(("kind", "what"), [("image", "A picture"), ("document", "A document")])
def test_the_model_is_told_of_parts_of_a_tools_result_that_it_cannot_read(kind: str, what: str, failed: bool) -> None:
    """An agent sends it with every request from then on, so a refusal would end the conversation for good."""
    unreadable = {"type": kind, "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [unreadable, *texts("5")], "is_error": failed}
    (message,) = messages({"role": "user", "content": [result]})
    assert message["content"] == texts(*["Error: "] * failed, f"[{what} that this model cannot read]", "5")


@pytest.mark.parametrize("new", [{"\x80" * 300 + str(i): 1 for i in range(60)}, {f"\x80{i}": 1 for i in range(1000)}])
def test_unknown_fields_cost_little(new: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that are repeated in many objects, or too many for one, are not written for the log each time."""
    shown: list[str] = []

    def counted(key: str) -> str:
        shown.append(key)
        return "x"

    monkeypatch.setattr(objects, "_named", set())
    monkeypatch.setattr(objects, "excerpt", counted)
    with contextlib.suppress(ApiError):
        chat(tools=[{**TOOL, **new}] * 100)
    with contextlib.suppress(ApiError):
        chat(**new)
    assert len(shown) <= objects.MAX_NAMED


# --- counting


def test_a_count_is_asked_of_the_same_prompt() -> None:
    prompt = {
        "system": "Be brief.",
        "tools": [TOOL],
        "thinking": {"type": "disabled"},
        "messages": [HI, {"role": "assistant", "content": "The"}],
    }
    counting = CountTranslation({"model": "m", **prompt, "tool_choice": {"type": "auto"}}, ID)
    whole_chat = chat(**prompt)
    assert counting.body == {name: whole_chat[name] for name in whole_chat if name not in ("max_tokens", "stream")}
    asked = counting.asked
    assert (asked.path, asked.endpoint, asked.splits) == ("/tokenize", "/v1/messages/count_tokens", False)
    assert count_of(counting.whole(json.dumps({"count": 5, "tokens": [1] * 5, "max_model_len": 9}).encode())) == 5
    with pytest.raises(ApiError):
        counting.whole(b'{"tokens": []}')


# --- refused


@pytest.mark.parametrize(
    ("asked", "param", "code"),
    [
        ({"max_completion_tokens": 1}, "max_completion_tokens", "unknown_parameter"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs", "unknown_parameter"),
        ({"n": 2}, "n", "unknown_parameter"),
        ({"max_tokens": None}, "max_tokens", "missing_required_parameter"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": [5]}, "messages[0]", "invalid_type"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0]",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use", "id": "a", "name": "x"}]}]},
            "messages[0].content[0]",
            "unsupported_parameter",
        ),
        (
            {"messages": [HI, {"role": "system", "content": [changed("x", tool={"type": "mcp_toolset_reference"})]}]},
            "messages[1].content[0].tool",
            "unsupported_parameter",
        ),
        ({"messages": [{"role": "user", "content": [changed("get")]}]}, "messages[0]", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "missing_required_parameter",
        ),
        ({"messages": [{"role": "user", "content": [{"type": []}]}]}, "messages[0].content[0].type", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]},
            "messages[0]",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]},
            "messages[0]",
            "invalid_value",
        ),
        ({"system": [{"type": "image"}]}, "system[0]", "unsupported_parameter"),
        ({"system": 5}, "system", "invalid_type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]", "unsupported_parameter"),
        ({"tools": [{"name": "get"}]}, "tools[0].input_schema", "missing_required_parameter"),
        ({"tools": [{**TOOL, "input_schema": {"type": "string"}}]}, "tools[0].input_schema", "invalid_value"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name", "missing_required_parameter"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "put"}}, "tool_choice", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice", "invalid_type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "missing_required_parameter"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens", "integer_below_min_value"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens", "invalid_value"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 1024}}, "thinking.budget_tokens", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": {"type": "any", "name": "get"}}, "tool_choice.name", "invalid_value"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type", "invalid_value"),
        ({"output_config": {"effort": "most"}}, "output_config.effort", "invalid_value"),
        ({"stop_sequences": [""]}, "stop_sequences", "empty_string"),
        ({"temperature": -1}, "temperature", "integer_below_min_value"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id", "invalid_type"),
        ({"service_tier": "flex"}, "service_tier", "invalid_value"),
        ({"container": "x"}, "container", "unsupported_parameter"),
        ({"mcp_servers": [{}]}, "mcp_servers", "unsupported_parameter"),
        ({"inference_geo": "eu"}, "inference_geo", "unsupported_parameter"),
        ({"thread": "x"}, "thread", "unsupported_parameter"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution"]}]}, "tools[0].allowed_callers[0]", "invalid_value"),
        ({"stream": "true"}, "stream", "invalid_type"),
    ],
)
def test_the_parameter_for_which_a_request_is_refused_is_named(asked: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        translation(**asked)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, param, code), error.message
    told = error_body(error, ID)["error"]
    assert param in told["message"], "Anthropic's clients see nothing but the message"
    assert told["type"] == "invalid_request_error"


def test_a_parameter_that_a_count_would_leave_out_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        CountTranslation({"model": "m", "messages": [HI], "documents": [{"text": "a"}]}, ID)
    assert (caught.value.status, caught.value.param) == (400, "documents")
