"""``tool_choice``, where it is more than a word, and which tools it means. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StrictStr, Tag

from baton_serve.core.protocol.openai.objects import by_type, of_types
from baton_serve.core.protocol.openai.tools import MAX_TOOLS
from baton_serve.router.dialects.open_object import OpenObject
from baton_serve.router.dialects.responses.calls import CLIENT_RUN, CUSTOM, FUNCTION

if TYPE_CHECKING:
    from baton_serve.router.dialects.responses.tools import Offered

#: The types of tools that clients name, by the types of the items of their calls.
_NAMED = {FUNCTION.item: "function", CUSTOM.item: "custom"}
_NAMESPACE = "namespace"
#: The types of references that have to mean a tool of the request.
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

    @property
    def has_to_exist(self) -> bool:
        """Whether a model that has no such tool cannot do what the client wants."""
        return self.type in _KNOWN


class AllowedTools(OpenObject):
    """Only some of the tools may be called. Those that the model is not offered are left out here as well."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolReference], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


ToolChoice = Annotated[
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[AllowedTools, Tag("AllowedTools")] | Annotated[ToolReference, Tag("ToolReference")],
        by_type({"allowed_tools": "AllowedTools"}, "ToolReference"),
    ],
    of_types(_KNOWN | {"allowed_tools"}, "choices"),
]
