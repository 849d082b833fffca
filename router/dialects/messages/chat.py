"""The chat that a request of Anthropic's becomes. Pure.

Results of tools are messages of their own in a chat. A text after a result is a message of the user. The model is
told of some declared tools only when the conversation refers to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.messages import TextPart as Text
from baton_serve.core.protocol.openai.objects import without_nulls
from baton_serve.router.dialects.chat_messages import AssistantTurn, Content, call_of, content_of, tool_message
from baton_serve.router.dialects.messages.blocks import (
    Block,
    Message,
    SystemBlock,
    SystemText,
    Thinking,
    ToolChange,
    ToolReference,
    ToolResult,
    ToolUse,
)
from baton_serve.router.dialects.messages.request import MessagesRequest, Prompting, Tool, ToolChoice
from baton_serve.router.dialects.names import Names

NAMES = Names(
    {
        "max_completion_tokens": "max_tokens",
        "stop": "stop_sequences",
        "response_format.json_schema": "output_config.format",
        "response_format": "output_config.format",
        "reasoning_effort": "output_config.effort",
    }
)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
#: Comes before what came of a call that failed: a chat has no other place for it.
_FAILED = "Error: "


def prompt_of(request: Prompting) -> dict[str, Any]:
    """The fields of the chat from which its prompt is made."""
    _complain(request)
    config, thinking = request.output_config, request.thinking
    fields: dict[str, Any] = {
        "model": request.model,
        "messages": _messages(request),
        "tools": [tool.for_chat() for tool in _offered(request)] or None,
        "reasoning_effort": None if config is None else config.effort,
        # Adaptive leaves it to the model, and so to its chat template.
        "thinking": None if thinking is None or thinking.type == "adaptive" else {"type": thinking.type},
    }
    if _is_continued(request):
        fields |= {"add_generation_prompt": False, "continue_final_message": True}
    prompt: dict[str, Any] = without_nulls(fields)
    return prompt


def chat_of(request: MessagesRequest) -> dict[str, Any]:
    """The body of the chat. A stream's chunks have the usage so far, because the first event tells the prompt's."""
    choice, schema = request.tool_choice, request.schema_of_text
    # A chat wants a name for a schema, and Anthropic has none.
    named = {"name": "answer", "schema": schema}
    fields: dict[str, Any] = {
        "stream": request.stream,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True} if request.stream else None,
        "max_tokens": request.max_tokens,
        "stop": request.stop_sequences or None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "tool_choice": None if choice is None else _chosen(choice),
        "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
        "response_format": None if schema is None else {"type": "json_schema", "json_schema": named},
        "user": None if request.metadata is None else request.metadata.user_id,
        **request.extensions,
    }
    return {**prompt_of(request), **without_nulls(fields)}


def _chosen(choice: ToolChoice) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return _CHOICES[choice.type]


def _complain(request: Prompting) -> None:
    """Check the rules between fields that a chat does not have; raises BadRequestError."""
    choice, thinking = request.tool_choice, request.thinking
    if choice is not None:
        _belongs("tool_choice.name", choice.name, "tool", choice.type)
    if thinking is not None:
        _belongs("thinking.budget_tokens", thinking.budget_tokens, "enabled", thinking.type)


def _belongs(param: str, value: Any, owner: str, kind: str) -> None:
    """Raise BadRequestError unless the parameter is given if, and only if, the type beside it is ``owner``."""
    if kind == owner and value is None:
        raise BadRequestError(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    if kind != owner and value is not None:
        raise BadRequestError(f"'{param}' is only allowed with the type {owner}.", param=param, code="invalid_value")


def _messages(request: Prompting) -> list[dict[str, Any]]:
    """The messages: the system's text, and then the others."""
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": content_of(request.system)})
    for message in request.messages:
        messages += _of(message)
    return messages


def _is_continued(request: Prompting) -> bool:
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


def _offered(request: Prompting) -> Sequence[Tool]:
    """The tools, in the order in which the client declares them."""
    tools = request.tools or []
    names = {tool.name for tool in tools if not tool.defer_loading}
    for message in request.messages:
        for name, is_offered in _changes(message.blocks):
            (names.add if is_offered else names.discard)(name)
    if request.tool_choice is not None and request.tool_choice.name is not None:
        names.add(request.tool_choice.name)
    return [tool for tool in tools if tool.name in names]


def _changes(blocks: Iterable[Block | SystemBlock]) -> Iterator[tuple[str, bool]]:
    """The tools of which the model is told from here on, or no more. The model knows a tool that it has called."""
    for block in blocks:
        match block:
            case ToolUse():
                yield block.name, True
            case ToolChange():
                yield block.tool.name, block.type == "tool_addition"
            case SystemText():
                yield from _changes(block.content)
            case ToolResult() if not isinstance(block.content, str):
                for part in block.content or ():
                    if isinstance(part, ToolReference):
                        yield part.tool_name, True
