"""``tool_choice``, where it is more than a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StrictStr, Tag

from core.protocol.openai.objects import by_type, of_types
from core.protocol.openai.tools import MAX_TOOLS
from router.dialects.open_object import OpenObject
from router.dialects.responses.calls import CLIENT_RUN, CUSTOM, FUNCTION

if TYPE_CHECKING:
    from router.dialects.responses.tools import Offered

_NAMED = {"function": FUNCTION, "custom": CUSTOM}
_SHAPES = {**_NAMED, **CLIENT_RUN}


class ToolReference(OpenObject):
    """A tool by its type, and by its name if the client has named it."""

    type: StrictStr
    name: StrictStr = ""
    namespace: StrictStr | None = None

    def means(self, tool: Offered) -> bool:
        """Whether it is this tool, or has this tool in it."""
        if self.type == "namespace":
            return tool.namespace == self.name
        if self.type in _NAMED and (self.name != tool.name or self.namespace not in (None, tool.namespace)):
            return False
        return _SHAPES.get(self.type) is tool.shape

    @property
    def has_to_exist(self) -> bool:
        """Whether a model that has no such tool cannot do what the client wants."""
        return self.type in _SHAPES


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
    of_types((*_SHAPES, "allowed_tools"), "choices"),
]
