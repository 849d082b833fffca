"""Makes a request's tools the tools of a chat, and finds them by the chat's names and by ``tool_choice``. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, StrictStr

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.excerpts import excerpt
from baton_serve.core.protocol.openai.objects import of_types
from baton_serve.core.protocol.openai.tools import MAX_TOOLS
from baton_serve.router.dialects.objects import ByType, OpenObject
from baton_serve.router.dialects.responses.calls import CLIENT_RUN, CUSTOM, FUNCTION
from baton_serve.router.dialects.responses.tools import Offered, Tool

#: The types of tools that clients name, by the types of the items of their calls.
_NAMED = {FUNCTION.item: "function", CUSTOM.item: "custom"}
_NAMESPACE = "namespace"
#: The types of references that have to mean a tool of the request: a model without it cannot do what is asked.
_KNOWN = frozenset({*_NAMED.values(), *CLIENT_RUN})

#: The type, the name and the namespace of a reference, as far as its type has them.
Key = tuple[str, str, str | None]


def keys_of(tool: Offered) -> set[Key]:
    """The keys of all references that mean this tool."""
    kind = _NAMED.get(tool.shape.item)
    if kind is None:
        return {(tool.name, "", None)}
    keys: set[Key] = {(kind, tool.name, None), (kind, tool.name, tool.namespace)}
    return keys if tool.namespace is None else keys | {(_NAMESPACE, tool.namespace, None)}


class ToolReference(OpenObject):
    """A tool by its type, and by its name if the client has named it."""

    type: StrictStr
    name: StrictStr = ""
    namespace: StrictStr | None = None

    @property
    def key(self) -> Key:
        """Equal for references that mean the same."""
        if self.type == _NAMESPACE:
            return self.type, self.name, None
        return (self.type, self.name, self.namespace) if self.type in _NAMED.values() else (self.type, "", None)


class AllowedTools(OpenObject):
    """Only some of the tools may be called. Tools that the model is not offered are left out here as well."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolReference], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | Annotated[AllowedTools | ToolReference, ByType(ToolReference)],
    of_types(_KNOWN | {"allowed_tools"}, "choices"),
]


class Toolbox:
    """What a model may call, by the names of functions of the chat."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        """Raises BadRequestError."""
        self._offered: dict[str, Offered] = {}
        for tool in tools:
            for offered in tool.offered():
                self._add(offered)

    def for_chat(self, choice: str | ToolReference | AllowedTools | None) -> dict[str, Any]:
        """The chat's fields. The model is not told of tools that may not be called. Raises BadRequestError."""
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
        """A tool that comes again replaces the earlier one: a search may find a newer schema."""
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
            if key not in names and reference.type in _KNOWN:
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
