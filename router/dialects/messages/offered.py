"""Of which tools the model is told: some that clients declare wait until the conversation refers to them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.router.dialects.messages.blocks import SystemText, ToolChange, ToolReference, ToolResult, ToolUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from baton_serve.router.dialects.messages.blocks import Block, SystemBlock
    from baton_serve.router.dialects.messages.request import Prompting, Tool


def offered(request: Prompting) -> Sequence[Tool]:
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
    """The tools of which the model is told from here on, or no more. One that it has called, it knows."""
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
