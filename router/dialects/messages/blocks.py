"""The blocks of messages, as clients send them: texts, thoughts, calls of tools and what came of those.

The content of an answer is accepted as it came. ``cache_control`` and what else says nothing to a model is dropped.
Types that would need support that Baton does not have are refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictStr, Tag, model_validator
from pydantic_core import PydanticCustomError

from core.protocol.openai.messages import TextPart
from core.protocol.openai.objects import CountedObject, by_type, of_types

#: The names of the models below, by the type of a block.
_MODELS = {"text": "Text", "thinking": "Thinking", "tool_use": "ToolUse", "tool_result": "ToolResult"}
#: What an assistant's message cannot have, and what only it can have.
_OF_USERS, _OF_ASSISTANTS = "tool_result", ("thinking", "tool_use")


class Text(TextPart):
    """A text."""


Texts = StrictStr | Annotated[list[Annotated[Text, of_types(("text",), "blocks")]], Field(fail_fast=True)]


class Thinking(CountedObject):
    """What the assistant thought. Signatures are not checked: Baton's are empty."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["thinking"]
    thinking: StrictStr


class ToolUse(CountedObject):
    """A call of the assistant's."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["tool_use"]
    id: StrictStr
    name: StrictStr
    input: dict[str, Any]


class ToolResult(CountedObject):
    """What came of a call."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["tool_result"]
    tool_use_id: StrictStr
    content: Texts | None = None
    is_error: StrictBool | None = None


Block = Annotated[
    Annotated[Text, Tag("Text")]
    | Annotated[Thinking, Tag("Thinking")]
    | Annotated[ToolUse, Tag("ToolUse")]
    | Annotated[ToolResult, Tag("ToolResult")],
    by_type(_MODELS, "Text"),
    of_types(_MODELS, "blocks"),
]


class Message(CountedObject):
    """One message. Those of the system may stand anywhere."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["user", "assistant", "system"]
    content: StrictStr | Annotated[list[Block], Field(fail_fast=True)]

    @model_validator(mode="after")
    def _check_roles(self) -> Message:
        for block in () if isinstance(self.content, str) else self.content:
            is_foreign = block.type == _OF_USERS if self.role == "assistant" else block.type in _OF_ASSISTANTS
            if is_foreign or (self.role == "system" and block.type != "text"):
                complaint = "Blocks of type '{type}' cannot be in a message of the role '{role}'"
                raise PydanticCustomError("role", complaint, {"type": block.type, "role": self.role})
        return self
