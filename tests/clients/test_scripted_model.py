"""The scripted model answers by its rules, the same whole and streamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.scripted_model import NO_RULE, ScriptedModel

RULES = [
    {"role": "user", "has": r"turn (\d+)", "call": "Bash", "arguments": {"command": r"echo of-\1", "dirs": [r"/\1"]}},
    {"role": "tool", "has": r"of-(\d+)", "say": r"It said \1."},
]
TOOL = {"type": "function", "function": {"name": "Bash"}}
ASKED = {"role": "user", "content": [{"type": "text", "text": "turn"}, {"type": "text", "text": "turn 3"}]}
CALLED = {"role": "assistant", "content": None, "tool_calls": []}


async def answer(folder: Path, stream: bool, *messages: dict[str, Any]) -> tuple[str, list[dict[str, Any]], str]:
    """The text, the called functions and the reason to end."""
    (folder / "one.json").write_text(json.dumps(RULES))
    body = {"model": "one", "messages": messages, "tools": [TOOL], "stream": stream}
    async with ScriptedModel([folder / "one.json"]) as model, httpx.AsyncClient(base_url=model.url) as client:
        told = await client.post("/v1/chat/completions", json=body)
    if not stream:
        (choice,) = told.json()["choices"]
        message = choice["message"]
        called = [call["function"] for call in message.get("tool_calls", ())]
        return message["content"] or "", called, choice["finish_reason"]
    *events, done, _ = told.text.split("\n\n")
    assert done == "data: [DONE]"
    choices = [choice for event in events for choice in json.loads(event.removeprefix("data: "))["choices"]]
    pieces = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls", ())]
    arguments = "".join(piece["arguments"] for piece in pieces)
    called = [{"name": pieces[0]["name"], "arguments": arguments}] if pieces else []
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    return text, called, choices[-1]["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
async def test_rules(tmp_path: Path, stream: bool) -> None:
    text, (call,), finish = await answer(tmp_path, stream, ASKED)
    assert (text, call["name"], finish) == ("", "Bash", "tool_calls")
    assert json.loads(call["arguments"]) == {"command": "echo of-3", "dirs": ["/3"]}
    said = {"role": "tool", "content": "of-3"}
    reminder = {"role": "user", "content": "Be kind."}
    assert await answer(tmp_path, stream, ASKED, CALLED, said, reminder) == ("It said 3.", [], "stop")
    assert await answer(tmp_path, stream, reminder) == (NO_RULE, [], "stop")
