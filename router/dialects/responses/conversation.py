"""From the items of a conversation to the messages of a chat. Pure.

Reasoning, a message and calls that follow each other are one turn of the assistant, as they are one message of a chat.
"""

from __future__ import annotations

from typing import Any

import orjson

from baton_serve.router.dialects.chat_messages import AssistantTurn, call_of, content_of, tool_message
from baton_serve.router.dialects.responses.calls import INPUT
from baton_serve.router.dialects.responses.items import (
    CallOutput,
    ClientCall,
    ClientCallOutput,
    CustomCall,
    FunctionCall,
    Item,
    Message,
    MoreTools,
    ReasoningItem,
)
from baton_serve.router.dialects.responses.request import ResponseRequest
from baton_serve.router.dialects.responses.tools import chat_name


def messages_of(request: ResponseRequest) -> list[dict[str, Any]]:
    """The messages: the instructions, and then the input."""
    conversation = _Conversation()
    if request.instructions:
        conversation.messages.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        conversation.messages.append({"role": "user", "content": request.input})
    else:
        for item in request.input:
            conversation.add(item)
    conversation.end_turn()
    return conversation.messages


class _Conversation:
    """The messages so far, and the assistant's turn that is not complete."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._turn = AssistantTurn()

    def add(self, item: Item) -> None:
        """Add one item."""
        match item:
            case ReasoningItem():
                self._think(item.text)
            case FunctionCall():
                self._call(item.call_id, chat_name(item.name, item.namespace), item.arguments)
            case CustomCall():
                self._call(item.call_id, chat_name(item.name, item.namespace), _json({INPUT: item.input}))
            case ClientCall():
                self._call(item.call_id, item.type.removesuffix("_call"), _json(item.given))
            case CallOutput():
                self._other(tool_message(item.call_id, content_of(item.output)))
            case ClientCallOutput():
                self._other(tool_message(item.call_id, item.text))
            case MoreTools(call_id=str(call_id)):
                self._other(tool_message(call_id, _found(item)))
            case Message(role="assistant"):
                self._say(item)
            case Message():
                self._other({"role": item.role, "content": content_of(item.content)})

    def end_turn(self) -> None:
        """The assistant's turn is over, if it had one."""
        if self._turn:
            self.messages.append(self._turn.message())
            self._turn = AssistantTurn()

    def _call(self, call_id: str, name: str, arguments: str) -> None:
        self._turn.calls.append(call_of(call_id, name, arguments))

    def _other(self, message: dict[str, Any]) -> None:
        self.end_turn()
        self.messages.append(message)

    def _think(self, reasoning: str) -> None:
        if self._turn.calls or self._turn.content is not None:  # reasoning begins a turn
            self.end_turn()
        self._turn.reasoning += reasoning

    def _say(self, message: Message) -> None:
        if self._turn.content is not None:
            self.end_turn()
        self._turn.content = content_of(message.content)


def _found(item: MoreTools) -> str:
    """What a search for tools has found. The chat has them among its tools, for which a model is told all of it."""
    names = [offered.function["name"] for tool in item.tools for offered in tool.offered()]
    return f"Tools that can be called now: {', '.join(names) or 'none'}"


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
