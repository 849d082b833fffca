"""OpenAI's client for Python."""

from __future__ import annotations

import json
from typing import Any, Literal

from openai import OpenAI
from pydantic import BaseModel
from pydantic_core import from_json
from rows import ASK, KEY, MAX_TOKENS, MODEL, SCHEMA, URL, check

client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)
COMMON: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": ASK}], "max_tokens": MAX_TOKENS}
TOOL: Any = {"type": "function", "function": {"name": "pass_on", "strict": True, "parameters": SCHEMA}}


class Leg(BaseModel):
    leg: Literal[1, 2, 3]
    hand: Literal["left", "right"]


def chat(**more: Any) -> Any:
    return client.chat.completions.create(**{**COMMON, **more}).choices[0].message


def streamed() -> bool:
    text, usage = "", None
    for chunk in client.chat.completions.create(**COMMON, stream=True, stream_options={"include_usage": True}):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    return bool(text and usage and usage.completion_tokens)


def stream_helper() -> bool:
    with client.chat.completions.stream(**COMMON, tools=[TOOL], tool_choice="required") as stream:
        for _ in stream:
            pass
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
    return bool(Leg.model_validate(call.function.parsed_arguments))


def call_and_answer(choice: Any) -> Any:
    message = chat(tools=[TOOL], tool_choice=choice)
    Leg.model_validate_json(message.tool_calls[0].function.arguments)
    answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "done"}
    return chat(messages=[*COMMON["messages"], message, answer], tools=[TOOL]).content


def several_streamed() -> bool:
    said = ["", "", ""]
    for chunk in client.chat.completions.create(**COMMON, n=3, temperature=1, seed=1, stream=True):
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
    return all(said)


def json_object() -> bool:
    """The demo model does not end the object, so what came is its beginning."""
    text = chat(response_format={"type": "json_object"}, max_tokens=40).content
    return isinstance(from_json(text, allow_partial="trailing-strings"), dict)


def completion(**more: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": "The baton", "max_tokens": 4, **more})


def scored() -> bool:
    found = completion(echo=True, logprobs=1, max_tokens=0).choices[0].logprobs
    return found.token_logprobs[0] is None and all(number < 0 for number in found.token_logprobs[1:])


def responses_streamed() -> bool:
    events = [event.type for event in client.responses.create(model=MODEL, input=ASK, stream=True)]
    return events[0] == "response.created" and events[-1] == "response.completed"


def responses_tools() -> bool:
    tool: Any = {"type": "function", "name": "pass_on", "parameters": SCHEMA, "strict": True}
    first = client.responses.create(model=MODEL, input=ASK, tools=[tool], tool_choice="required")
    (call,) = [item for item in first.output if item.type == "function_call"]
    json.loads(call.arguments)
    answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    history: Any = [{"role": "user", "content": ASK}, *first.output, answer]
    return bool(client.responses.create(model=MODEL, input=history, tools=[tool]).output_text)


def parsed_response() -> bool:
    answer = client.responses.parse(model=MODEL, input=ASK, text_format=Leg, max_output_tokens=MAX_TOKENS)
    return isinstance(answer.output_parsed, Leg)


def listed() -> bool:
    return MODEL in [model.id for model in client.models.list()] and client.models.retrieve(MODEL).id == MODEL


check("chat.completions.create()", lambda: chat().content)
check("the same, streamed, with usage", streamed)
check("n=3, streamed", several_streamed)
check("logprobs", lambda: client.chat.completions.create(**COMMON, logprobs=True, top_logprobs=5).choices[0].logprobs)
check("response_format: json_object", json_object)
check(
    "chat.completions.parse() with a pydantic model",
    lambda: client.chat.completions.parse(**COMMON, response_format=Leg).choices[0].message.parsed,
)
check("tools, auto", lambda: chat(tools=[TOOL]).content)
check("tools, required, and the answer to the call", lambda: call_and_answer("required"))
check("tools, named", lambda: call_and_answer({"type": "function", "function": {"name": "pass_on"}}))
check("chat.completions.stream() with a tool", stream_helper)
check("completions.create()", lambda: completion().choices[0].text)
check("the same with a list of prompts", lambda: len(completion(prompt=["The baton", "A runner"]).choices) == 2)
check("the same with echo, logprobs and no new token", scored)
check("responses.create()", lambda: client.responses.create(model=MODEL, input=ASK).output_text)
check("the same, streamed", responses_streamed)
check("the same with a tool, and the answer to the call", responses_tools)
check("responses.parse() with a pydantic model", parsed_response)
check("models.list(), models.retrieve()", listed)
