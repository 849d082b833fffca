"""Llama 3: the whole answer is a JSON object with ``name`` and ``parameters``, or several, with semicolons between."""

from __future__ import annotations

from workers.parsers.formats.parts import everything_else, template

LLAMA = template(
    content=everything_else(),
    calls={
        # Only at the beginning of an answer, or behind a call: JSON in the middle of a text is text.
        "open_pattern": r"(?:\A\s*(?:<\|python_tag\|>)?|(?<=\})\s*;)\s*"
        r'(?=\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"[^"]*"\s*,\s*"(?:parameters|arguments)"\s*:)',
        "close_pattern": r"(?<=\})(?=\s*;\s*\{)",
        "content": "json",
        "content_args": {"allow_non_json": True},
        "repeats": True,
    },
)
