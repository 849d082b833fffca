"""langchain-openai."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel
from rows import ASK, KEY, MAX_TOKENS, MODEL, URL, check

WHERE: dict[str, Any] = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": KEY, "max_tokens": MAX_TOKENS}
chat = ChatOpenAI(**WHERE)


class Leg(BaseModel):
    """A leg of the race."""

    leg: Literal[1, 2, 3]
    hand: Literal["left", "right"]


@tool
def pass_on(leg: Literal[1, 2, 3]) -> str:
    """Pass the baton on."""
    return f"leg {leg} is done"


def call_and_answer() -> Any:
    # Strict, so that the small model does not go on with arguments that nobody declared, up to max_tokens.
    first = chat.bind_tools([pass_on], tool_choice="required", strict=True).invoke(ASK)
    (call,) = first.tool_calls
    return chat.bind_tools([pass_on]).invoke([HumanMessage(ASK), first, pass_on.invoke(call)]).content


def several() -> bool:
    answers = ChatOpenAI(**WHERE, n=2, temperature=1).generate([[HumanMessage(ASK)]])
    return len(answers.generations[0]) == 2


check("ChatOpenAI.invoke()", lambda: chat.invoke(ASK).content)
check("stream(), with usage", lambda: "".join(str(part.content) for part in chat.stream(ASK, stream_usage=True)))
check("batch()", lambda: len(chat.batch([ASK, "What is a lease?"])) == 2)
check("n=2", several)
check("logprobs", lambda: chat.bind(logprobs=True).invoke(ASK).response_metadata["logprobs"]["content"])
check("with_structured_output()", lambda: isinstance(chat.with_structured_output(Leg).invoke(ASK), Leg))
check(
    "with_structured_output(), by a function",
    lambda: isinstance(chat.with_structured_output(Leg, method="function_calling").invoke(ASK), Leg),
)
check("bind_tools(), auto", lambda: chat.bind_tools([pass_on]).invoke(ASK).content)
check("bind_tools(), required, and the answer to the call", call_and_answer)
check("the Responses API", lambda: ChatOpenAI(**WHERE, use_responses_api=True).invoke(ASK).content)
check(
    "OpenAI (completions) with two prompts",
    lambda: len(OpenAI(**{**WHERE, "max_tokens": 5}).generate(["a", "b"]).generations) == 2,
)
