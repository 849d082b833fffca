"""Mistral: a control token, and then the name and the arguments of a call; in older models a list of JSON objects."""

from __future__ import annotations

from workers.parsers.formats.parts import everything_else, many_texts, template, text

_CALLED = r"(?<=\[TOOL_CALLS\][^\[{]*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?)"

MISTRAL = template(
    content=everything_else(),
    reasoning=text(r"\[THINK\]", r"\[/THINK\]\s*"),
    name=many_texts(r"\s*\[TOOL_CALLS\]\s*(?=[^\[\s])", r"(?:\[CALL_ID\][^\[]*)?\[ARGS\]|(?=\{)"),
    arguments=many_texts(rf"{_CALLED}(?=\{{)", r"\s*(?=\[TOOL_CALLS\])"),
    calls={
        "open_pattern": r"\s*\[TOOL_CALLS\]\s*(?=\[)",
        "close_pattern": r"\s*(?=\[TOOL_CALLS\])",
        "content": "json",
        "content_args": {"allow_non_json": True},
        "repeats": True,
    },
)
