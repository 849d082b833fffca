"""Qwen 3 Coder: tags for the function and for each parameter, whose type only the tool's schema knows."""

from __future__ import annotations

from workers.parsers.formats.parts import everything_else, template, thought

QWEN_CODER = template(
    content=everything_else(),
    reasoning=thought(),
    calls={
        "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\s]+)>\s*",
        "close_pattern": r"\s*</function>\s*</tool_call>\s*",
        "content": "xml-inline",
        "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\s]+)>\n?(?P<value>.*?)\n?</parameter>"},
        "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        "repeats": True,
    },
)
