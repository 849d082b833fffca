"""Chats and completions in the types of OpenAI's client, nothing missing and nothing more, whatever is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.kits import strict_types
from tests.kits.strict_types import strictly
from tests.kits.whole.stack import MODEL, Stack

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {"leg": {"enum": [1, 2, 3]}},
    "required": ["leg"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "pass_on", "parameters": SCHEMA}}]
NAMED = {"type": "function", "function": {"name": "pass_on"}}
BOTH: dict[str, dict[str, Any]] = {
    "plain": {},
    "one token": {"max_tokens": 1},
    "several": {"n": 3, "temperature": 1, "seed": 1},
    "a stop string": {"stop": ["a"]},
    "a stop token": {"stop_token_ids": list(range(5, 900))},
    "token ids": {"return_token_ids": True, "return_tokens_as_token_ids": True},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "leg", "schema": SCHEMA}}},
}
CHATS: dict[str, dict[str, Any]] = {
    **BOTH,
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "a tool": {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 100},
    "no tool": {"tools": TOOLS, "tool_choice": "none"},
    "hints": {"metadata": {"a": "b"}, "store": False, "service_tier": "auto", "user": "ann"},
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    **BOTH,
    "logprobs": {"logprobs": 3},
    "prompts": {"prompt": ["The baton", "A lease", "A hand-off"]},
    "the best": {"best_of": 3, "n": 1, "temperature": 1, "seed": 1},
    "an echo": {"echo": True, "logprobs": 2},
    "an echo alone": {"echo": True, "logprobs": 0, "max_tokens": 0},
}
#: These are refused in streams.
WHOLE_ONLY = {"the best"}
NUM_CHOICES = {"several": 3, "prompts": 3}


async def text_of(stack: Stack, path: str, **asked: Any) -> str:
    asking = {"prompt": "The baton"} if path == COMPLETION else {"messages": [{"role": "user", "content": "The baton"}]}
    return (await stack.post(path, **{"max_tokens": 8, "temperature": 0, **asking, **asked})).text


@pytest.mark.parametrize("asked", CHATS)
async def test_chats(stack: Stack, asked: str) -> None:
    answer = strictly(ChatCompletion, await text_of(stack, CHAT, **CHATS[asked]))
    assert [choice.index for choice in answer.choices] == list(range(NUM_CHOICES.get(asked, 1)))
    assert answer.usage is not None and answer.usage.completion_tokens


@pytest.mark.parametrize("asked", COMPLETIONS)
async def test_completions(stack: Stack, asked: str) -> None:
    kind = strict_types.EchoCompletion if "echo" in asked else Completion
    answer = strictly(kind, await text_of(stack, COMPLETION, **COMPLETIONS[asked]))
    assert [choice.index for choice in answer.choices] == list(range(NUM_CHOICES.get(asked, 1)))
    assert answer.usage is not None and answer.usage.prompt_tokens


@pytest.mark.parametrize(
    "usage", [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
@pytest.mark.parametrize(
    ("path", "asked"),
    [*((CHAT, name) for name in CHATS), *((COMPLETION, name) for name in COMPLETIONS if name not in WHOLE_ONLY)],
)
async def test_streams(stack: Stack, path: str, asked: str, usage: dict[str, bool]) -> None:
    """Each choice ends once, and the usage comes last where it is asked for, and nowhere else."""
    more = (CHATS if path == CHAT else COMPLETIONS)[asked]
    text = await text_of(stack, path, stream=True, stream_options=usage, **more)
    kind = ChatCompletionChunk if path == CHAT else strict_types.CompletionEvent
    events = [event.model_dump() for event in strict_types.plain_events(kind, text)]
    ended = [choice["index"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert sorted(ended) == list(range(NUM_CHOICES.get(asked, 1)))
    counted = [event for event in events if event["usage"]]
    assert counted == (events if usage.get("continuous_usage_stats") else events[-1:] if usage else [])
    assert bool(events[-1]["choices"]) is not bool(usage)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_logprobs_of_the_prompt(stack: Stack, path: str) -> None:
    kind = ChatCompletion if path == CHAT else Completion
    assert strictly(kind, await text_of(stack, path, prompt_logprobs=2)).choices


async def test_models(stack: Stack) -> None:
    answer = await stack.http.get(f"{stack.router.url}/v1/models/{MODEL}")
    assert strictly(Model, answer.text).id == MODEL
