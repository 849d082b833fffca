"""Tools: functions that a model may call, which of them it must call, and calls in the history of a chat."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, ConfigDict, Field, StrictBool, StrictStr, field_validator
from pydantic_core import PydanticCustomError

from core.protocol.openai.objects import CountedObject, StrictObject

#: Baton's own bounds. OpenAI's are 128 tools and names of 64 characters; agents that have some MCP servers send more.
MAX_TOOLS = 1024
MAX_NAME_CHARS = 256
#: OpenAI's bound.
MAX_CALLS = 128
_NAME = re.compile(rf"[a-zA-Z0-9_.\-]{{1,{MAX_NAME_CHARS}}}")


def _check_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        complaint = f"Must be 1 to {MAX_NAME_CHARS} letters, digits, dots, hyphens and underscores"
        raise PydanticCustomError("function_name", complaint)
    return name


FunctionName = Annotated[StrictStr, AfterValidator(_check_name)]


def _check_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object":
        raise PydanticCustomError("no_object", "Must be the schema of an object, as arguments are one")
    return schema


#: The JSON schema of a function's arguments.
Parameters = Annotated[dict[str, Any], AfterValidator(_check_parameters)]


class Function(StrictObject):
    """``parameters``: the JSON schema of the arguments. ``strict`` changes nothing: forced calls always follow it."""

    name: FunctionName
    description: StrictStr | None = None
    parameters: Parameters | None = None
    strict: StrictBool | None = None


class Tool(StrictObject):
    """One entry of ``tools``."""

    type: Literal["function"]
    function: Function


class _Named(StrictObject):
    name: FunctionName


class ToolOfChoice(StrictObject):
    """``tool_choice`` when it names a function."""

    type: Literal["function"]
    function: _Named

    @property
    def name(self) -> str:
        """The function's."""
        return self.function.name


ToolChoice = Literal["none", "auto", "required"] | ToolOfChoice
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class CalledFunction(CountedObject):
    """Which function a call is of. ``arguments``: a JSON object as a string."""

    model_config = ConfigDict(extra="ignore")

    name: StrictStr
    arguments: StrictStr = "{}"

    @field_validator("arguments")
    @classmethod
    def _is_an_object(cls, value: str) -> str:
        try:
            found = orjson.loads(value or "{}")
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise PydanticCustomError("no_object", "Must be a JSON object as a string")
        return value


class ToolCall(CountedObject):
    """A call in a message of the assistant."""

    model_config = ConfigDict(extra="ignore")

    id: StrictStr = ""
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """The call as chat templates expect it: the arguments as an object."""
        arguments = orjson.loads(self.function.arguments or "{}")
        return {
            "id": self.id,
            "type": self.type,
            "function": {"name": self.function.name, "arguments": arguments},
        }


ToolCalls = Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)]
