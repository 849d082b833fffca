"""Llama 3: the whole answer is a JSON object with ``name`` and ``parameters``, or several, with semicolons between."""

from __future__ import annotations

from baton_serve.workers.parsers.formats.parts import NAME, everything_else, json_calls, template

LLAMA = template(
    content=everything_else(),
    # Only at the beginning of an answer, or behind a call: JSON in the middle of a text is text.
    calls=json_calls(
        r"(?:\A\s*(?:<\|python_tag\|>)?|(?<=\})\s*;)\s*"
        r'(?=\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"'
        rf'[^"]{{0,{NAME}}}"\s*,\s*"(?:parameters|arguments)"\s*:)',
        r"(?<=\})(?=\s*;\s*\{)",
    ),
)
