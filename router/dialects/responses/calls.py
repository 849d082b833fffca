"""How the calls of each kind of tool look in a response. In the chat each is the call of a function. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
from pydantic_core import from_json, to_json

#: The only parameter of the function that a custom tool becomes.
INPUT = "input"


def _object(arguments: str) -> dict[str, Any]:
    """The arguments, as far as they have come; empty if they are no object.

    They are written and read once more because ``from_json`` makes integers that orjson does not write.
    """
    try:
        found = orjson.loads(to_json(from_json(arguments, allow_partial="trailing-strings"), inf_nan_mode="null"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _input(arguments: str) -> str:
    """What a custom tool is given: arguments of another form as they are, so that the tool can tell the model."""
    given = _object(arguments).get(INPUT)
    return given if isinstance(given, str) else arguments


def _action(always: dict[str, Any], arguments: str) -> dict[str, Any]:
    return {**always, **_object(arguments)}


def _patch(arguments: str) -> dict[str, Any]:
    return _object(arguments) or {"type": "update_file", "path": "", "diff": ""}


@dataclass(frozen=True)
class CallShape:
    """``item``: the type of the item. ``key``: where it has what ``read`` makes of the function's arguments."""

    item: str
    id_prefix: str
    key: str
    read: Callable[[str], Any]
    #: What the events about it are called; empty: there are none, so the item has it when it is done.
    events: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    #: What a model is told of a tool of which clients name no more than the type.
    about: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def streams(self) -> bool:
        """Whether the arguments stream piece by piece: only where the item has them as the model wrote them."""
        return self.read is str


_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_NUMBER = {"type": "integer"}


def _schema(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


FUNCTION = CallShape("function_call", "fc", "arguments", str, "response.function_call_arguments")
CUSTOM = CallShape(
    "custom_tool_call",
    "ctc",
    "input",
    _input,
    "response.custom_tool_call_input",
    parameters=_schema((INPUT,), input=_TEXT),
)
#: The tools of which OpenAI names the parameters and the client makes the calls, by their types.
CLIENT_RUN = {
    "local_shell": CallShape(
        "local_shell_call",
        "lsh",
        "action",
        partial(_action, {"type": "exec", "command": [], "env": {}}),
        about="Runs a program on the user's machine. The command is a list of words.",
        parameters=_schema(("command",), command=_TEXTS, working_directory=_TEXT, timeout_ms=_NUMBER),
    ),
    "shell": CallShape(
        "shell_call",
        "sh",
        "action",
        partial(_action, {"commands": []}),
        about="Runs shell commands on the user's machine, one after the other.",
        parameters=_schema(("commands",), commands=_TEXTS, timeout_ms=_NUMBER, max_output_length=_NUMBER),
    ),
    "apply_patch": CallShape(
        "apply_patch_call",
        "apc",
        "operation",
        _patch,
        about="Creates, updates or deletes a file. The diff is a V4A diff: lines that begin with a space, + or -, "
        "in sections that begin with @@; to create a file, all lines begin with +.",
        parameters=_schema(
            ("type", "path"), type={"enum": ["create_file", "update_file", "delete_file"]}, path=_TEXT, diff=_TEXT
        ),
    ),
    "tool_search": CallShape(
        "tool_search_call",
        "tsc",
        "arguments",
        _object,
        more={"execution": "client"},
        about="Searches for further tools.",
        parameters=_schema(("query",), query=_TEXT),
    ),
}
