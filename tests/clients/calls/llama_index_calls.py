"""llama-index."""

from __future__ import annotations

from typing import Any, Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from rows import ASK, KEY, MAX_TOKENS, MODEL, URL, check

WHERE: dict[str, Any] = {"model": MODEL, "api_base": f"{URL}/v1", "api_key": KEY, "context_window": 8192}
chat = OpenAILike(
    **WHERE,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    max_tokens=MAX_TOKENS,
)
text = OpenAILike(**WHERE, is_chat_model=False, max_tokens=20)
USER = [ChatMessage(role="user", content=ASK)]


class Leg(BaseModel):
    """A leg of the race."""

    leg: Literal[1, 2, 3]
    hand: Literal["left", "right"]


def pass_on(leg: int) -> str:
    """Pass the baton on."""
    return f"leg {leg} is done"


def called() -> Any:
    tools = [FunctionTool.from_defaults(pass_on)]
    answer = chat.chat_with_tools(tools, user_msg=ASK, tool_required=True)
    return chat.get_tool_calls_from_response(answer)[0].tool_kwargs


check("chat()", lambda: chat.chat(USER).message.content)
check("stream_chat()", lambda: [*chat.stream_chat(USER)][-1].message.content)
check("as_structured_llm()", lambda: isinstance(chat.as_structured_llm(Leg).chat(USER).raw, Leg))
check("chat_with_tools(), required", called)
check("complete()", lambda: text.complete("The baton").text)
check("stream_complete()", lambda: [*text.stream_complete("The baton")][-1].text)
