"""Calls that a grammar forces on a model, whatever its family: Hermes' layout, to the letter.

The strings of JSON have no line ends, so no argument can look like the end of a call.
"""

from __future__ import annotations

from baton_serve.workers.parsers.formats.parts import many_texts, template

BEGINS = '<tool_call>\n{"name": "'
BETWEEN = '", "arguments": '
ENDS = "}\n</tool_call>"

FORCED = template(
    name=many_texts(r'<tool_call>\n\{"name": "', '"'),
    arguments=many_texts(r'(?<=<tool_call>\n\{"name": "[^"]*"), "arguments": ', r"\}\n</tool_call>"),
)
