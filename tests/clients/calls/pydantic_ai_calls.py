"""pydantic-ai, over chat completions, Responses and Anthropic's Messages."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from rows import ASK, KEY, MAX_TOKENS, MODEL, URL, check


class Leg(BaseModel):
    leg: Literal[1, 2, 3]
    hand: Literal["left", "right"]


openai = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
CHAT = OpenAIChatModel(MODEL, provider=openai)
RESPONSES = OpenAIResponsesModel(MODEL, provider=openai)
MESSAGES = AnthropicModel(MODEL, provider=AnthropicProvider(api_key=KEY, base_url=URL))


def agent(model: Any, **more: Any) -> Any:
    return Agent(model, model_settings={"max_tokens": MAX_TOKENS}, **more)


def run(model: Any, **more: Any) -> Any:
    return agent(model, **more).run_sync(ASK).output


def with_tool(model: Any) -> Any:
    made = agent(model)

    @made.tool_plain
    def pass_on(leg: Literal[1, 2, 3]) -> str:
        """Pass the baton on."""
        return f"leg {leg} is done"

    return made.run_sync(ASK).output


async def streamed(model: Any) -> str:
    async with agent(model).run_stream(ASK) as result:
        return [part async for part in result.stream_text()][-1]


for over, model in (("chat completions", CHAT), ("Responses", RESPONSES), ("Messages", MESSAGES)):
    check(f"Agent over {over}", lambda model=model: run(model))
    check(f"streamed, over {over}", lambda model=model: asyncio.run(streamed(model)))
    check(f"with a tool, over {over}", lambda model=model: with_tool(model))
    check(
        f"output by a tool, over {over}", lambda model=model: isinstance(run(model, output_type=ToolOutput(Leg)), Leg)
    )
    if model is not MESSAGES:  # the client itself knows no native output of models that are not Anthropic's
        check(
            f"native structured output, over {over}",
            lambda model=model: isinstance(run(model, output_type=NativeOutput(Leg)), Leg),
        )
