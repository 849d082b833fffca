"""Tools that are no functions: the chat's functions that they become, their calls in the response, and in the input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.tools import MAX_TOOLS
from baton_serve.router.dialects.responses.translation import NAMES, ResponseTranslation
from baton_serve.router.dialects.stream import DialectStream
from tests.kits.dialects.chats import argues, calls, ends, role, whole, whole_call
from tests.kits.strict_types import response_events, response_of

ID = "ab" * 16
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
CUSTOM = {"type": "custom", "name": "patch", "description": "Patches.", "format": GRAMMAR}
SAID = {"role": "user", "content": "hi"}
FUNCTION = {"type": "function", "name": "get", "parameters": {"type": "object"}}
NAMESPACE = {"type": "namespace", "name": "crm", "description": "", "tools": [FUNCTION, CUSTOM]}
SEARCH = {"type": "tool_search", "execution": "client", "description": "Searches.", "parameters": {"type": "object"}}
LOCAL_SHELL = {"type": "local_shell"}
SHELL = {"type": "shell", "environment": {"type": "local"}}
PATCH = {"type": "apply_patch"}
ALL = [CUSTOM, FUNCTION, NAMESPACE, SEARCH, LOCAL_SHELL, SHELL, PATCH]
RUN = {"type": "exec", "command": ["ls", "-l"], "env": {}}
UPDATE = {"type": "update_file", "path": "a", "diff": "@@\n-a\n+b"}

#: The tool, what the model calls and with which arguments, the item, and the message of what came of it.
CALLS: list[tuple[dict[str, Any], str, Any, dict[str, Any], dict[str, Any], str]] = [
    (
        CUSTOM,
        "patch",
        {"input": 'say "a"\n'},
        {"type": "custom_tool_call", "name": "patch", "input": 'say "a"\n'},
        {"type": "custom_tool_call_output", "output": "done"},
        "done",
    ),
    (
        NAMESPACE,
        "crm__get",
        {"a": 1},
        {"type": "function_call", "name": "get", "namespace": "crm", "arguments": '{"a":1}'},
        {"type": "function_call_output", "output": "5"},
        "5",
    ),
    (
        NAMESPACE,
        "crm__patch",
        {"input": "a"},
        {"type": "custom_tool_call", "name": "patch", "namespace": "crm", "input": "a"},
        {"type": "custom_tool_call_output", "output": [{"type": "input_text", "text": "5"}]},
        "5",
    ),
    (
        SEARCH,
        "tool_search",
        {"query": "q", "limit": 2},
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "q", "limit": 2}},
        {"type": "tool_search_output", "tools": [FUNCTION], "execution": "client", "status": "completed"},
        "Tools that can be called now: get",
    ),
    (
        LOCAL_SHELL,
        "local_shell",
        {"command": ["ls", "-l"]},
        {"type": "local_shell_call", "action": RUN},
        {"type": "local_shell_call_output", "output": '{"stdout":"a"}'},
        '{"stdout":"a"}',
    ),
    (
        SHELL,
        "shell",
        {"commands": ["ls"], "timeout_ms": 5},
        {"type": "shell_call", "action": {"commands": ["ls"], "timeout_ms": 5}},
        {"type": "shell_call_output", "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "timeout"}}]},
        '[{"stdout":"a","stderr":"","outcome":{"type":"timeout"}}]',
    ),
    (
        PATCH,
        "apply_patch",
        UPDATE,
        {"type": "apply_patch_call", "operation": UPDATE},
        {"type": "apply_patch_call_output", "status": "failed"},
        "failed",
    ),
]
each_call = pytest.mark.parametrize(("tool", "name", "arguments", "item", "output", "text"), CALLS)


def translation(*tools: dict[str, Any], **more: Any) -> ResponseTranslation:
    return ResponseTranslation({"model": "m", "input": "hi", "tools": list(tools), **more}, ID)


def functions(*tools: dict[str, Any], **more: Any) -> dict[str, dict[str, Any]]:
    """The functions of the chat, by their names."""
    return {tool["function"]["name"]: tool["function"] for tool in translation(*tools, **more).body.get("tools", [])}


def called(tool: dict[str, Any], name: str, arguments: str, finish: str = "tool_calls") -> Any:
    """The only item of a response in which the model has called something."""
    answer = whole({"tool_calls": [whole_call(0, name, arguments)]}, finish)
    (item,) = response_of(translation(tool).whole(answer)).output
    return item


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# --- what the model is offered


def test_every_tool_that_the_client_runs_is_a_function() -> None:
    offered = functions(*ALL)
    assert set(offered) == {
        *("patch", "get", "crm__get", "crm__patch", "tool_search", "local_shell", "shell", "apply_patch")
    }
    for function in offered.values():
        assert function["parameters"]["type"] == "object"
    assert offered["patch"]["parameters"]["required"] == ["input"]
    assert offered["tool_search"]["description"] == "Searches."


def test_the_model_is_told_of_the_grammar_of_a_custom_tool() -> None:
    about = functions(CUSTOM)["patch"]["description"]
    assert about.startswith("Patches.") and "lark" in about and GRAMMAR["definition"] in about
    assert functions({**CUSTOM, "format": {"type": "text"}})["patch"]["description"] == "Patches."
    assert "description" not in functions({"type": "custom", "name": "a"})["a"]


@pytest.mark.parametrize("kind", ["additional_tools", "tool_search_output"])
def test_tools_that_come_later_are_offered_too(kind: str) -> None:
    later = {"type": kind, "role": "developer", "tools": [NAMESPACE, {"type": "web_search"}]}
    said = {"role": "user", "content": "hi"}
    assert set(functions(PATCH, input=[later, said])) == {"apply_patch", "crm__get", "crm__patch"}
    assert translation(input=[later, said]).body["messages"] == [said]


def test_a_tool_that_only_programs_of_the_model_may_call_is_not_offered() -> None:
    assert functions({**FUNCTION, "allowed_callers": ["programmatic"]}, CUSTOM).keys() == {"patch"}
    assert functions({**FUNCTION, "allowed_callers": ["direct", "programmatic"]}, CUSTOM).keys() == {"get", "patch"}


def test_two_tools_that_the_model_could_not_tell_apart_are_refused() -> None:
    with pytest.raises(BadRequestError, match="'crm__get'"):
        translation(NAMESPACE, {"type": "function", "name": "crm__get"})
    with pytest.raises(BadRequestError, match="'local_shell'"):
        translation(LOCAL_SHELL, {"type": "function", "name": "local_shell"})
    assert functions(NAMESPACE, NAMESPACE).keys() == {"crm__get", "crm__patch"}


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "custom", "name": "patch"}, "patch"),
        ({"type": "function", "name": "get"}, "get"),
        ({"type": "function", "name": "get", "namespace": "crm"}, "crm__get"),
        ({"type": "shell"}, "shell"),
        ({"type": "apply_patch"}, "apply_patch"),
    ],
)
def test_any_of_the_tools_can_be_chosen(choice: dict[str, Any], name: str) -> None:
    assert translation(*ALL, tool_choice=choice).body["tool_choice"] == {"type": "function", "function": {"name": name}}


def test_only_some_of_the_tools_may_be_allowed() -> None:
    def allowed(*tools: dict[str, Any]) -> Any:
        return functions(*ALL, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": list(tools)}).keys()

    assert allowed({"type": "custom", "name": "patch"}, {"type": "web_search"}) == {"patch", "crm__patch"}
    assert allowed({"type": "namespace", "name": "crm"}, {"type": "shell"}) == {"crm__get", "crm__patch", "shell"}
    assert allowed({"type": "image_generation"}) == set()
    with pytest.raises(BadRequestError, match="'local_shell', which is none of 'tools'"):
        translation(FUNCTION, tool_choice={"type": "local_shell"})


@pytest.mark.parametrize("kind", ["tool_search_output", "additional_tools"])
def test_the_newest_of_a_tool_that_comes_again_is_offered(kind: str) -> None:
    newer = {**FUNCTION, "parameters": {"type": "object", "required": ["a"]}}
    later = {"type": kind, "role": "developer", "tools": [newer]}
    assert functions(FUNCTION, CUSTOM, input=[later, SAID])["get"]["parameters"] == newer["parameters"]


def test_namespaces_have_no_more_tools_than_a_request_may_have() -> None:
    def offer(count: int) -> None:
        some = {
            "type": "namespace",
            "name": "a",
            "tools": [{"type": "function", "name": f"f{i}"} for i in range(count)],
        }
        choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get"}]}
        assert functions(FUNCTION, some, some, tool_choice=choice).keys() == {"get"}

    offer(MAX_TOOLS - 1)
    with pytest.raises(BadRequestError, match=f"more than {MAX_TOOLS} tools"):
        offer(MAX_TOOLS)


def _num_calls(num_tools: int, references: list[dict[str, Any]]) -> int:
    """How often Python calls something while a request that allows some of its tools is translated."""
    tools = [{"type": "function", "name": f"f{number}"} for number in range(num_tools)]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": references}
    found = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(count)
    try:
        translation({"type": "namespace", "name": "crm", "tools": tools}, tool_choice=choice)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize(
    "reference",
    [
        pytest.param(lambda number: {"type": "function", "name": f"f{number}"}, id="each"),
        pytest.param(lambda _: {"type": "namespace", "name": "crm"}, id="the same"),
        pytest.param(lambda number: {"type": "namespace", "name": f"zz{number}"}, id="none"),
    ],
)
def test_an_allowed_tool_costs_the_same_however_many_there_are(reference: Callable[[int], dict[str, Any]]) -> None:
    _num_calls(1, [reference(0)])
    few, many = (_num_calls(count, [reference(number) for number in range(count)]) for count in (50, 500))
    assert many <= 12 * few


# --- what the model calls


@each_call
def test_a_call_is_an_item_of_its_own_kind(
    tool: dict[str, Any], name: str, arguments: Any, item: dict[str, Any], output: Any, text: str
) -> None:
    found = called(tool, name, compact(arguments)).to_dict()
    assert found.pop("id").endswith(f"_{ID}_0")
    assert found == {"call_id": "call_0", "status": "completed", **item}


@each_call
def test_a_stream_ends_with_the_same_item(
    tool: dict[str, Any], name: str, arguments: Any, item: dict[str, Any], output: Any, text: str
) -> None:
    said = compact(arguments)
    pieces = [said[start : start + 3] for start in range(0, len(said), 3)]
    stream = DialectStream(translation(tool, stream=True), NAMES)
    chat = [role(), calls(0, name), *(argues(0, piece) for piece in pieces), ends("tool_calls")]
    events = response_events(b"".join(map(stream.feed, chat)).decode())
    begun, *told, done, last = events[2:]
    assert [begun.type, done.type] == ["response.output_item.added", "response.output_item.done"]
    assert last.response.output == [done.item] == [called(tool, name, said)]
    assert (begun.item.type, begun.item.id) == (done.item.type, done.item.id)
    field = {"custom_tool_call": "input", "function_call": "arguments"}.get(item["type"])
    assert bool(told) == (field is not None)
    if field is not None:
        *deltas, ended = told
        assert "".join(delta.delta for delta in deltas) == getattr(ended, field) == item[field]
        assert {event.item_id for event in told} == {done.item.id}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [('{"input":"a', "a"), ('{"code":"a"}', '{"code":"a"}'), ('{"input":5}', '{"input":5}'), ("a", "a"), ("", "")],
)
def test_a_custom_tool_gets_what_the_model_has_said(arguments: str, given: str) -> None:
    """Whatever the model says: the tool can tell it what was wrong."""
    assert called(CUSTOM, "patch", arguments).input == given


def test_an_action_without_arguments_is_one_all_the_same() -> None:
    assert called(LOCAL_SHELL, "local_shell", "[]").action.to_dict() == {"type": "exec", "command": [], "env": {}}
    assert called(SHELL, "shell", "{").action.commands == []


def test_a_call_in_which_an_answer_was_cut_off_is_incomplete() -> None:
    item = called(CUSTOM, "patch", '{"input":"a', "length")
    assert (item.to_dict()["status"], item.input) == ("incomplete", "a")


def test_a_tool_that_the_model_makes_up_is_called_as_a_function() -> None:
    item = called(CUSTOM, "made_up", "{}")
    assert (item.type, item.name, item.arguments) == ("function_call", "made_up", "{}")


HUGE = "9" * 20


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (f'{{"timeout_ms":{HUGE}}}', {"timeout_ms": 1e20}),
        (f'{{"timeout_ms":{HUGE},"user":"a', {"timeout_ms": 1e20, "user": "a"}),
        ('{"timeout_ms":%s}' % ("9" * 400), {}),
        ('{"timeout_ms":NaN}', {"timeout_ms": None}),
        ('{{"timeout_ms":{}{}}}'.format("[" * 300, "]" * 300), {}),
    ],
)
def test_arguments_that_cannot_be_written_again_end_no_answer(arguments: str, given: dict[str, Any]) -> None:
    found = json.loads(translation(LOCAL_SHELL).whole(whole({"tool_calls": [whole_call(0, "local_shell", arguments)]})))
    assert found["output"][0]["action"] == {"type": "exec", "command": [], "env": {}, **given}


# --- what comes back


@each_call
def test_a_call_and_its_output_come_back(
    tool: dict[str, Any], name: str, arguments: Any, item: dict[str, Any], output: Any, text: str
) -> None:
    made = called(tool, name, compact(arguments)).to_dict()
    turn, result = translation(tool, input=[made, {**output, "call_id": "call_0"}]).body["messages"]
    (call,) = turn["tool_calls"]
    given = item.get("action", arguments)
    assert (call["id"], call["function"]["name"]) == ("call_0", name)
    assert json.loads(call["function"]["arguments"]) == given
    assert result == {"role": "tool", "tool_call_id": "call_0", "content": text}


def test_the_output_of_a_shell_may_have_the_id_of_the_call_as_its_own() -> None:
    output = {"type": "local_shell_call_output", "id": "call_0", "output": "a"}
    assert translation(input=[output]).body["messages"][0]["tool_call_id"] == "call_0"


@pytest.mark.parametrize("kind", ["web_search_call", "image_generation_call"])
def test_calls_that_a_server_has_made_are_left_out(kind: str) -> None:
    said = {"role": "assistant", "content": "It rains."}
    found = {"type": kind, "id": "x", "status": "completed", "action": {"type": "search", "query": "rain"}}
    assert translation(input=[found, said]).body["messages"] == [said]


@pytest.mark.parametrize(("part", "what"), [("input_image", "A picture"), ("input_file", "A file")])
def test_the_model_is_told_of_parts_of_a_tools_output_that_it_cannot_read(part: str, what: str) -> None:
    """An agent sends it with every request from then on, so a refusal would end the conversation for good."""
    output = [{"type": part, "image_url": "data:"}, {"type": "input_text", "text": "a"}]
    item = {"type": "function_call_output", "call_id": "c", "output": output}
    first, second = translation(input=[item]).body["messages"][0]["content"]
    assert first == {"type": "text", "text": f"[{what} that this model cannot read]"}
    assert second == {"type": "text", "text": "a"}


def test_reasoning_that_another_server_has_encrypted_is_dropped() -> None:
    thought = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAAA"}
    said = {"role": "assistant", "content": "a"}
    assert translation(input=[thought, said]).body["messages"] == [said]
