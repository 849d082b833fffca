"""Anthropic's client."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic
from rows import ASK, KEY, MAX_TOKENS, MODEL, SCHEMA, URL, check

client = Anthropic(base_url=URL, api_key=KEY)
COMMON: dict[str, Any] = {"model": MODEL, "max_tokens": MAX_TOKENS, "messages": [{"role": "user", "content": ASK}]}
TOOL: Any = {"name": "pass_on", "description": "Pass the baton on.", "input_schema": SCHEMA}


def streamed() -> bool:
    with client.messages.stream(**COMMON) as stream:
        text = "".join(stream.text_stream)
        return bool(text) and stream.get_final_message().content[0].text == text


def call_and_answer(choice: Any) -> Any:
    first = client.messages.create(**COMMON, tools=[TOOL], tool_choice=choice)
    call = first.content[-1]
    if first.stop_reason != "tool_use" or call.input["leg"] not in (1, 2, 3):
        raise ValueError(first)
    answer = {"type": "tool_result", "tool_use_id": call.id, "content": "done"}
    history = [{"role": "assistant", "content": first.content}, {"role": "user", "content": [answer]}]
    more = {**COMMON, "messages": [*COMMON["messages"], *history]}
    return client.messages.create(**more, tools=[TOOL]).content


def tool_streamed() -> Any:
    with client.messages.stream(**COMMON, tools=[TOOL], tool_choice={"type": "any"}) as stream:
        return stream.get_final_message().content[-1].input["leg"]


check("messages.create()", lambda: client.messages.create(**COMMON, system="Be short.").content[0].text)
check("messages.stream()", streamed)
check("tools, any, and the answer to the call", lambda: call_and_answer({"type": "any"}))
check("tools, named", lambda: call_and_answer({"type": "tool", "name": "pass_on"}))
check("messages.stream() with a tool", tool_streamed)
check("stop_sequences", lambda: client.messages.create(**COMMON, stop_sequences=["a"]).stop_reason == "stop_sequence")
check(
    "messages.count_tokens()",
    lambda: client.messages.count_tokens(model=MODEL, messages=COMMON["messages"]).input_tokens,
)
