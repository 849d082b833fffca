"""Tools: functions that a model may call, which of them it must call, and calls in the history of a chat."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from baton_serve.core.protocol.openai.objects import CountedObject, StrictObject, without_nulls

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


class _Offered(StrictObject):
    """A part of a tool. What it says to Anthropic's cache is not shown to the model."""

    cache_control: Any = Field(None, exclude=True)


class Function(_Offered):
    """``parameters``: the JSON schema of the arguments. ``strict`` changes nothing: forced calls always follow it."""

    name: FunctionName
    description: StrictStr | None = None
    parameters: Parameters | None = None
    strict: StrictBool | None = None


class Tool(_Offered):
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


def _as_text(arguments: Any) -> str:
    """The arguments as a string, which is how they should come."""
    if isinstance(arguments, str):
        return arguments
    try:
        return orjson.dumps(arguments).decode()
    except orjson.JSONEncodeError:
        raise PydanticCustomError("too_deep", "Is nested too deeply") from None


class _Called(CountedObject):
    """A part of a call."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        return without_nulls(value)


class CalledFunction(_Called):
    """Which function a call is of. ``arguments``: a JSON object as a string, or whatever the model has made of it.

    A call that was cut off, or whose arguments are no object, is a part of the history like any other: if it were
    refused, the conversation could never go on.
    """

    name: StrictStr
    arguments: Annotated[StrictStr, BeforeValidator(_as_text)] = "{}"

    @property
    def argument_object(self) -> dict[str, Any]:
        """The arguments; none if they are no object, as with vLLM, because templates read nothing else."""
        try:
            found = orjson.loads(self.arguments)
        except orjson.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}


class ToolCall(_Called):
    """A call in a message of the assistant."""

    id: StrictStr = ""
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """The call as chat templates expect it: the arguments as an object."""
        function = {"name": self.function.name, "arguments": self.function.argument_object}
        return {"id": self.id, "type": self.type, "function": function}


ToolCalls = Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)]
