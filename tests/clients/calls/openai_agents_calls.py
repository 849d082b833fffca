"""openai-agents, over Responses and over chat completions."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel
from rows import ASK, KEY, MAX_TOKENS, MODEL, URL, check

set_tracing_disabled(True)


class Leg(BaseModel):
    leg: Literal[1, 2, 3]
    hand: Literal["left", "right"]


@function_tool
def pass_on(leg: Literal[1, 2, 3]) -> str:
    """Pass the baton on."""
    return f"leg {leg} is done"


def agent(kind: Any = OpenAIResponsesModel, choice: str | None = None, **more: Any) -> Agent[None]:
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY)
    settings = ModelSettings(tool_choice=choice, max_tokens=MAX_TOKENS)
    return Agent(
        name="runner", instructions="You are a runner.", model=kind(MODEL, client), model_settings=settings, **more
    )


def run(**more: Any) -> Any:
    async def once() -> Any:
        return await Runner.run(agent(**more), ASK)

    return asyncio.run(once())


def streamed() -> bool:
    async def once() -> bool:
        result = Runner.run_streamed(agent(), ASK)
        kinds = [event.type async for event in result.stream_events()]
        return bool(result.final_output) and "raw_response_event" in kinds

    return asyncio.run(once())


def handed_off() -> bool:
    async def once() -> str:
        other = agent()
        other.name = "other"
        return (await Runner.run(agent(choice="required", handoffs=[other]), ASK)).last_agent.name

    return asyncio.run(once()) == "other"


check("Agent over Responses", lambda: run().final_output)
check("the same, streamed", streamed)
check("with a typed output", lambda: isinstance(run(output_type=Leg).final_output, Leg))
check("with a tool that has to be called", lambda: run(choice="required", tools=[pass_on]).final_output)
check("with a hand-off to another agent", handed_off)
check("Agent over chat completions", lambda: run(kind=OpenAIChatCompletionsModel).final_output)
