"""Hermes, Qwen 2.5 and Qwen 3: a JSON object with ``name`` and ``arguments`` between tags."""

from __future__ import annotations

from baton_serve.workers.parsers.formats.parts import everything_else, many_texts, template, thought

_NAME = r'<tool_call>\s*\{\s*"name"\s*:\s*"'

HERMES = template(
    content=everything_else(),
    reasoning=thought(),
    name=many_texts(rf"\s*{_NAME}", '"'),
    arguments=many_texts(rf'(?<={_NAME}[^"]*")\s*,\s*"arguments"\s*:\s*', r"\s*\}\s*</tool_call>\s*"),
)
