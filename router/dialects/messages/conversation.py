"""From Anthropic's messages to those of a chat. Pure.

Results of tools are messages of their own in a chat. A text after them is a message of the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from baton_serve.router.dialects.chat_messages import AssistantTurn, call_of, content_of, tool_message
from baton_serve.router.dialects.messages.blocks import SystemText, Text, Thinking, ToolResult, ToolUse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton_serve.router.dialects.chat_messages import Content
    from baton_serve.router.dialects.messages.blocks import Block, Message, SystemBlock
    from baton_serve.router.dialects.messages.request import Prompting

#: Comes before what came of a call that failed: a chat has no other place for it.
_FAILED = "Error: "


def messages_of(request: Prompting) -> list[dict[str, Any]]:
    """The messages: the system's text, and then the others."""
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": content_of(request.system)})
    for message in request.messages:
        messages += _of(message)
    return messages


def is_continued(request: Prompting) -> bool:
    """Whether the answer goes on in the last message, which the client has begun in the assistant's place."""
    last = request.messages[-1]
    if last.role != "assistant" or not last.content:
        return False
    return isinstance(last.content, str) or all(isinstance(block, Text) for block in last.content)


def _of(message: Message) -> Iterator[dict[str, Any]]:
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
    elif message.role == "assistant":
        yield _of_assistant(message.content)
    elif message.role == "system":
        yield from _of_system(message.content)
    else:
        yield from _of_user(message.content)


def _of_assistant(blocks: Sequence[Block]) -> dict[str, Any]:
    turn = AssistantTurn()
    texts = [block for block in blocks if isinstance(block, Text)]
    turn.content = content_of(texts) if texts else None
    for block in blocks:
        match block:
            case Thinking():
                turn.reasoning += block.thinking
            case ToolUse():
                turn.calls.append(call_of(block.id, block.name, orjson.dumps(block.input).decode()))
    return turn.message()


def _of_system(blocks: Sequence[Block | SystemBlock]) -> Iterator[dict[str, Any]]:
    """None, if the system has only changed the tools."""
    texts = [block for block in blocks if isinstance(block, Text)]
    if texts or not blocks:
        yield {"role": "system", "content": content_of(texts) if texts else ""}


def _of_user(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    texts: list[Text] = []
    for block in blocks:
        if isinstance(block, Text):
            texts.append(block)
            continue
        if texts:
            yield {"role": "user", "content": content_of(texts)}
            texts = []
        match block:
            case ToolResult():
                yield tool_message(block.tool_use_id, _result(block))
            case SystemText():
                yield from _of_system(block.content)
    if texts or not blocks:
        yield {"role": "user", "content": content_of(texts) if texts else ""}


def _result(block: ToolResult) -> Content:
    content: Content = content_of(block.content) if block.content else ""
    if not block.is_error:
        return content
    return _FAILED + content if isinstance(content, str) else [{"type": "text", "text": _FAILED}, *content]
