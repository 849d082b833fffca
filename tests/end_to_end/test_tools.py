"""Calls of tools with real processes: forced by a grammar, on P and D as on one worker, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_serve.baton.demo.training.tools import load_tools
from tests.kits.whole.stack import MODEL, Stack
from tests.kits.whole.streams import CHAT, chunks_of

PARAMETERS = {
    "type": "object",
    "properties": {"leg": {"type": "integer", "minimum": 1, "maximum": 99}, "hand": {"enum": ["left", "right"]}},
    "required": ["leg", "hand"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "pass_on", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "drop", "parameters": {"type": "object", "additionalProperties": False}}},
]
#: As the first pages of clients' documentations have it.
WEATHER = {
    "name": "get_weather",
    "description": "Get current weather for a location.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "City name"}},
        "required": ["location"],
    },
}
NAMED = {"type": "function", "function": {"name": "pass_on"}}
BODY = {
    "messages": [{"role": "user", "content": "The baton"}],
    "tools": TOOLS,
    "max_tokens": 200,
    "temperature": 1,
}


async def ask(stack: Stack, **more: Any) -> dict[str, Any]:
    return dict((await stack.post(CHAT, **{**BODY, **more})).json()["choices"][0])


async def ask_stream(stack: Stack, **more: Any) -> tuple[list[tuple[str, str]], str]:
    """The calls, by name and arguments, and the reason for the end."""
    calls: list[tuple[str, str]] = []
    reason = ""
    for chunk in chunks_of((await stack.post(CHAT, **{**BODY, "stream": True, **more})).text):
        (choice,) = chunk["choices"]
        reason = choice["finish_reason"] or reason
        assert not choice["delta"].get("content")
        for part in choice["delta"].get("tool_calls", ()):
            if "id" in part:
                assert part["index"] == len(calls)
                calls.append((part["function"]["name"], ""))
            name, arguments = calls[part["index"]]
            calls[part["index"]] = (name, arguments + part["function"]["arguments"])
    return calls, reason


def check(calls: list[tuple[str, str]]) -> None:
    for name, arguments in calls:
        found = json.loads(arguments)
        if name == "pass_on":
            assert set(found) == {"leg", "hand"}
            assert 1 <= found["leg"] <= 99 and found["hand"] in ("left", "right")
        else:
            assert (name, found) == ("drop", {})


def shown(choice: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_a_forced_call(stack: Stack, both: Stack, choice: Any, seed: int) -> None:
    asked = {"tool_choice": choice, "seed": seed, "parallel_tool_calls": False}
    split, whole = await ask(stack, **asked), await ask(both, **asked)
    assert shown(split) == shown(whole)
    assert len(shown(split)) == 1 and split["message"]["content"] is None
    check(shown(split))
    assert split["finish_reason"] == ("tool_calls" if choice == "required" else "stop")
    assert choice == "required" or shown(split)[0][0] == "pass_on"
    assert await ask_stream(stack, **asked) == (shown(split), split["finish_reason"])


async def test_calls_one_after_another(stack: Stack, both: Stack) -> None:
    """An answer that may not end yet goes on with another call. The last one may be cut off."""
    asked = {"tool_choice": "required", "seed": 4, "min_tokens": 120}
    split, whole = await ask(stack, **asked), await ask(both, **asked)
    assert shown(split) == shown(whole)
    assert len(shown(split)) > 1
    check(shown(split)[: None if split["finish_reason"] == "tool_calls" else -1])


async def test_a_model_that_may_call_answers(stack: Stack, both: Stack) -> None:
    """The demo model was not taught to call these tools."""
    split, whole = await ask(stack, tool_choice="auto", seed=1), await ask(both, tool_choice="auto", seed=1)
    assert split == whole
    assert split["message"]["content"] and "tool_calls" not in split["message"]
    call = {"id": "call_1", "type": "function", "function": {"name": "drop", "arguments": "{}"}}
    history = [
        *BODY["messages"],  # type: ignore[misc]
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    assert (await ask(stack, messages=history))["message"]["content"]


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_the_demo_model_calls_a_tool_of_its_own(stack: Stack, both: Stack, choice: str) -> None:
    """Without a limit to its answers: they end by themselves."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in San Francisco?"}]
    tools = [{"type": "function", "function": WEATHER}]
    asked: dict[str, Any] = {"messages": messages, "tools": tools, "temperature": 0, "max_tokens": None}
    split = await ask(stack, **asked, tool_choice=choice)
    assert shown(split) == shown(await ask(both, **asked, tool_choice=choice))
    assert (shown(split), split["finish_reason"]) == (
        [("get_weather", '{"location": "San Francisco"}')],
        "tool_calls",
    )
    result = {"role": "tool", "tool_call_id": split["message"]["tool_calls"][0]["id"], "content": "18 and sunny"}
    told = await ask(stack, **{**asked, "messages": [*messages, split["message"], result]})
    assert (told["message"]["content"], told["finish_reason"]) == (load_tools()[0].told, "stop")


async def test_the_demo_model_calls_a_tool_in_a_response(stack: Stack) -> None:
    asked = {"input": "What is the weather in San Francisco?", "tool_choice": "required"}
    answer = await stack.post("/v1/responses", tools=[{"type": "function", **WEATHER}], **asked)
    (call,) = answer.json()["output"]
    assert (answer.json()["status"], call["name"], json.loads(call["arguments"])) == (
        "completed",
        "get_weather",
        {"location": "San Francisco"},
    )


async def test_a_schema_that_cannot_be(stack: Stack) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"uniqueItems": True}}}
    body = {**BODY, "model": MODEL, "tools": [tool], "tool_choice": "required"}
    answer = await stack.http.post(f"{stack.router.url}{CHAT}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "tools"), answer.text
    assert "uniqueItems" in error["message"]
    await stack.until_idle()
