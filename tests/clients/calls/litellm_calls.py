"""litellm."""

from __future__ import annotations

import os
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks for a list of prices in the internet

import litellm
from pydantic import BaseModel
from rows import ASK, KEY, MAX_TOKENS, MODEL, SCHEMA, URL, check

litellm.suppress_debug_info = True
WHERE: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY}
COMMON: dict[str, Any] = {**WHERE, "messages": [{"role": "user", "content": ASK}], "max_tokens": MAX_TOKENS}
TOOL = {"type": "function", "function": {"name": "pass_on", "parameters": SCHEMA}}


class Leg(BaseModel):
    leg: Literal[1, 2, 3]
    hand: Literal["left", "right"]


def chat(**more: Any) -> Any:
    return litellm.completion(**COMMON, **more).choices[0].message


def text() -> Any:
    where = {**WHERE, "model": f"text-completion-openai/{MODEL}"}
    return litellm.text_completion(prompt="The baton", max_tokens=8, **where).choices[0].text


def batch() -> bool:
    answers = litellm.batch_completion(**{**COMMON, "messages": [COMMON["messages"]] * 2})
    # What went wrong is in the place of an answer.
    return [answer.choices[0].message.content != "" for answer in answers] == [True, True]


def called() -> Any:
    arguments = chat(tools=[TOOL], tool_choice="required").tool_calls[0].function.arguments
    return Leg.model_validate_json(arguments)


check("completion()", lambda: chat().content)
check(
    "the same, streamed",
    lambda: "".join(c.choices[0].delta.content or "" for c in litellm.completion(**COMMON, stream=True)),
)
check("n=2", lambda: len(litellm.completion(**COMMON, n=2, temperature=1).choices) == 2)
check("response_format: a pydantic model", lambda: Leg.model_validate_json(chat(response_format=Leg).content))
check("tools, auto", lambda: chat(tools=[TOOL]).content)
check("tools, required", called)
check("batch_completion()", batch)
check("text_completion()", text)
check("responses()", lambda: litellm.responses(input=ASK, **WHERE).output)
check(
    "anthropic.messages()",
    lambda: __import__("asyncio").run(
        litellm.anthropic.messages.acreate(
            messages=COMMON["messages"], max_tokens=60, model=f"anthropic/{MODEL}", api_base=URL, api_key=KEY
        )
    )["content"],
)
