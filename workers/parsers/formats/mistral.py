"""Mistral: a control token, and then the name and the arguments of a call; in older models a list of JSON objects."""

from __future__ import annotations

from baton_serve.workers.parsers.formats.parts import call, everything_else, json_calls, template, text

MISTRAL = template(
    content=everything_else(),
    reasoning=text(r"\[THINK\]", r"\[/THINK\]\s*"),
    call=call(r"\s*\[TOOL_CALLS\]\s*(?=[^\[\s])", r"\s*(?=\[TOOL_CALLS\])", marks=("[CALL_ID]", "[ARGS]")),
    calls=json_calls(r"\s*\[TOOL_CALLS\]\s*(?=\[)", r"\s*(?=\[TOOL_CALLS\])"),
)
