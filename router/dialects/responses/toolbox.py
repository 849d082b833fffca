"""The tools of one request as those of its chat, and from the chat's names back to the client's. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.excerpts import excerpt
from baton_serve.core.protocol.openai.tools import MAX_TOOLS
from baton_serve.router.dialects.responses.calls import FUNCTION
from baton_serve.router.dialects.responses.tool_choice import AllowedTools, ToolReference, keys_of
from baton_serve.router.dialects.responses.tools import Offered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton_serve.router.dialects.responses.tool_choice import Key
    from baton_serve.router.dialects.responses.tools import Tool


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
        names: Iterable[str] = self._offered
        chosen: Any = choice
        if isinstance(choice, AllowedTools):
            allowed = set(self._meant(choice.tools))
            names, chosen = [name for name in self._offered if name in allowed], choice.mode
        elif isinstance(choice, ToolReference):
            chosen = {"type": "function", "function": {"name": self._meant([choice])[0]}}
        return {
            "tools": [{"type": "function", "function": self._offered[name].function} for name in names] or None,
            "tool_choice": chosen,
        }

    def called(self, name: str) -> Offered:
        """The tool that has been called. A name that no tool has is told to the client as the name of a function."""
        return self._offered.get(name) or Offered(FUNCTION, name, None, {})

    def _add(self, tool: Offered) -> None:
        """Of a tool that comes again the newest counts: a search may find a newer schema."""
        name = tool.function["name"]
        if self._offered.get(name, tool)[:3] != tool[:3]:
            raise BadRequestError(
                f"'tools' has two that the model would know as '{excerpt(name)}'.", param="tools", code="invalid_value"
            )
        self._offered[name] = tool
        if len(self._offered) > MAX_TOOLS:
            raise BadRequestError(
                f"'tools' has more than {MAX_TOOLS} tools, with those in namespaces and those that came later.",
                param="tools",
                code="array_above_max_length",
            )

    def _meant(self, references: Iterable[ToolReference]) -> list[str]:
        """The names of the tools that are meant."""
        names = self._names()
        different = {reference.key: reference for reference in references}
        for key, reference in different.items():
            if key not in names and reference.has_to_exist:
                raise BadRequestError(
                    f"'tool_choice' names '{excerpt(reference.name or reference.type)}', which is none of 'tools'.",
                    param="tool_choice",
                    code="invalid_value",
                )
        return [name for key in different for name in names.get(key, ())]

    def _names(self) -> dict[Key, list[str]]:
        """The names of the offered tools, by the keys of the references that mean them."""
        found: dict[Key, list[str]] = {}
        for name, tool in self._offered.items():
            for key in keys_of(tool):
                found.setdefault(key, []).append(name)
        return found
