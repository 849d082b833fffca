"""The blocks of messages, as clients send them: texts, thoughts, calls of tools, their results, and tools that the
model learns of on the way.

The content of an answer is accepted as it came. ``cache_control`` and what else says nothing to a model is dropped.
Types that would need support that Baton does not have are refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from baton_serve.core.protocol.openai.messages import TextPart as Text
from baton_serve.core.protocol.openai.objects import CountedObject, of_types
from baton_serve.core.protocol.openai.tools import FunctionName
from baton_serve.router.dialects.objects import TOLD, ByType, types_of

Texts = StrictStr | Annotated[list[Annotated[Text, of_types(("text",), "blocks")]], Field(fail_fast=True)]


class ToolReference(CountedObject):
    """A tool that a client's own search has found. The model reads its name, and learns of the tool itself as well."""

    type: Literal["tool_reference"]
    tool_name: FunctionName

    @property
    def text(self) -> str:
        """What the model reads."""
        return f"{self.tool_name}\n"


class NamedTool(CountedObject):
    """Which tool is meant. A tool of an MCP server is refused by name: Baton calls no such server."""

    type: Literal["tool_reference"]
    name: FunctionName


class ToolChange(CountedObject):
    """From here on the model is told of a tool, or no more."""

    type: Literal["tool_addition", "tool_removal"]
    tool: Annotated[NamedTool, of_types(("tool_reference",), "tools")]


SystemBlock = Annotated[Text | ToolChange, ByType(Text, "blocks")]


class SystemText(CountedObject):
    """A message of the system amid the conversation."""

    type: Literal["mid_conv_system"]
    content: Annotated[list[SystemBlock], Field(fail_fast=True)]


class Thinking(CountedObject):
    """What the assistant thought. Signatures are not checked: Baton's are empty."""

    type: Literal["thinking"]
    thinking: StrictStr


class RedactedThinking(CountedObject):
    """What the assistant thought, readable for Anthropic alone: the model is not told of it."""

    type: Literal["redacted_thinking"]


class ToolUse(CountedObject):
    """A call of the assistant's."""

    type: Literal["tool_use"]
    id: StrictStr
    name: StrictStr
    #: A model may have written something else. Refused, it would end the conversation: it comes with each request.
    input: Annotated[dict[str, Any], BeforeValidator(lambda given: given if isinstance(given, dict) else {})]


ResultBlock = Annotated[Text | ToolReference, ByType(Text, "blocks"), TOLD]


class ToolResult(CountedObject):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: StrictStr
    content: StrictStr | Annotated[list[ResultBlock], Field(fail_fast=True)] | None = None
    is_error: StrictBool | None = None


#: The types that a message of each role may have.
_OF_ROLES = {
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
    "user": frozenset({"text", "tool_result", "mid_conv_system"}),
    "system": frozenset({"text", *types_of(ToolChange)}),
}
Block = Annotated[
    Text | Thinking | RedactedThinking | ToolUse | ToolResult | SystemText | ToolChange, ByType(Text, "blocks")
]


class Message(CountedObject):
    """One message. Messages of the system may stand anywhere."""

    role: Literal["user", "assistant", "system"]
    content: StrictStr | Annotated[list[Block], Field(fail_fast=True)]

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks; none if it is a text."""
        return () if isinstance(self.content, str) else self.content

    @model_validator(mode="after")
    def _check_roles(self) -> Message:
        for block in self.blocks:
            if block.type not in _OF_ROLES[self.role]:
                complaint = "Blocks of type '{type}' cannot be in a message of the role '{role}'"
                raise PydanticCustomError("role", complaint, {"type": block.type, "role": self.role})
        return self
