"""The tools of one request as those of its chat, and from the chat's names back to the client's. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.protocol.errors import BadRequestError
from core.protocol.excerpts import excerpt
from router.dialects.responses.calls import FUNCTION
from router.dialects.responses.tool_choice import AllowedTools, ToolReference
from router.dialects.responses.tools import Offered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.dialects.responses.tools import Tool


class Toolbox:
    """What a model may call, by the names of functions of the chat."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        """Raises BadRequestError."""
        self._offered: dict[str, Offered] = {}
        for tool in tools:
            for offered in tool.offered():
                self._add(offered)

    def for_chat(self, choice: str | ToolReference | AllowedTools | None) -> dict[str, Any]:
        """The chat's fields. Of tools that may not be called the model is not told. Raises BadRequestError."""
        tools = list(self._offered.values())
        chosen: Any = choice
        if isinstance(choice, AllowedTools):
            allowed = [tool.function["name"] for reference in choice.tools for tool in self._meant(reference)]
            tools, chosen = [tool for tool in tools if tool.function["name"] in allowed], choice.mode
        elif isinstance(choice, ToolReference):
            chosen = {"type": "function", "function": {"name": self._meant(choice)[0].function["name"]}}
        return {
            "tools": [{"type": "function", "function": tool.function} for tool in tools] or None,
            "tool_choice": chosen,
        }

    def called(self, name: str) -> Offered:
        """The tool that has been called. A name that none has is given to the client as that of a function."""
        return self._offered.get(name) or Offered(FUNCTION, name, None, {})

    def _add(self, tool: Offered) -> None:
        name = tool.function["name"]
        if self._offered.setdefault(name, tool)[:3] != tool[:3]:
            raise BadRequestError(
                f"'tools' has two that the model would know as '{excerpt(name)}'.", param="tools", code="invalid_value"
            )

    def _meant(self, reference: ToolReference) -> list[Offered]:
        """The tools that are meant. There may be none only if the reference is to what the model is not offered."""
        found = [tool for tool in self._offered.values() if reference.means(tool)]
        if not found and reference.has_to_exist:
            raise BadRequestError(
                f"'tool_choice' names '{excerpt(reference.name or reference.type)}', which is none of 'tools'.",
                param="tool_choice",
                code="invalid_value",
            )
        return found
