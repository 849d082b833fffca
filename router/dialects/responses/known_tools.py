"""What a model is told of the tools of which clients name no more than the type."""

from __future__ import annotations

from typing import Any

from baton_serve.router.dialects.responses.calls import INPUT

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_NUMBER = {"type": "integer"}


def _schema(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


#: The parameters of the function that a custom tool becomes.
TEXT_INPUT = _schema((INPUT,), input=_TEXT)
KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "local_shell": (
        "Runs a program on the user's machine. The command is a list of words.",
        _schema(("command",), command=_TEXTS, working_directory=_TEXT, timeout_ms=_NUMBER),
    ),
    "shell": (
        "Runs shell commands on the user's machine, one after the other.",
        _schema(("commands",), commands=_TEXTS, timeout_ms=_NUMBER, max_output_length=_NUMBER),
    ),
    "apply_patch": (
        "Creates, updates or deletes a file. The diff is a V4A diff: lines that begin with a space, + or -, "
        "in sections that begin with @@; to create a file, all lines begin with +.",
        _schema(
            ("type", "path"),
            type={"enum": ["create_file", "update_file", "delete_file"]},
            path=_TEXT,
            diff=_TEXT,
        ),
    ),
    "tool_search": ("Searches for further tools.", _schema(("query",), query=_TEXT)),
}
