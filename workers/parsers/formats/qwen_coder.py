"""Qwen 3 Coder: tags for the function and for each parameter, whose type only the tool's schema knows."""

from __future__ import annotations

from baton_serve.workers.parsers.formats.parts import NAME, everything_else, template, thought

QWEN_CODER = template(
    content=everything_else(),
    reasoning=thought(),
    calls={
        "open_pattern": rf"\s*<tool_call>\s*<function=(?P<name>[^>\s]{{1,{NAME}}})>\s*",
        "close_pattern": r"\s*</function>\s*</tool_call>\s*",
        "content": "xml-inline",
        # A value ends before the next parameter at the latest: otherwise each of many that do not end would be searched
        # for its end as far as the text goes.
        "content_args": {
            "tag_pattern": rf"<parameter=(?P<key>[^>\s]{{1,{NAME}}})>\n?"
            r"(?P<value>(?:(?!<parameter=).)*?)\n?</parameter>"
        },
        "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        "repeats": True,
    },
)
