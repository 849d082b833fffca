"""Makes a model call a tool: the grammar of its answer, and how that is read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from baton_serve.workers.parsers.families import many_texts, template
from baton_serve.workers.parsers.message_parser import MessageParser
from baton_serve.workers.parsers.spaces import load

if TYPE_CHECKING:
    from transformers.utils.chat_parsing.response_templates import ResponseTemplate

# Whatever the model's family, calls have Hermes' layout, to the letter. The strings of JSON have no line ends, so no
# argument can look like the end of a call.
_BEGINS = '<tool_call>\n{"name": "'
_BETWEEN = '", "arguments": '
_ENDS = "}\n</tool_call>"
_FORCED = template(
    name=many_texts(r'<tool_call>\n\{"name": "', '"'),
    arguments=many_texts(r'(?<=<tool_call>\n\{"name": "[^"]*"), "arguments": ', r"\}\n</tool_call>"),
)
#: Arguments are an object, also of a tool that does not say so.
_ANY_OBJECT: dict[str, Any] = {"type": "object"}
#: llguidance's options: JSON as Python writes it. With free spaces a model may write nothing else until it is cut off.
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def grammar_of_calls(tools: Sequence[dict[str, Any]], *, one: bool) -> str:
    """The Lark grammar, as llguidance knows it, of an answer of nothing but calls of these tools.

    ``one``: there is one call and no more.
    """
    lines = ["start: call" if one else 'start: call ("\\n" call)*']
    lines.append("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
    for number, tool in enumerate(tools):
        function = tool["function"]
        begins = _literal(f"{_BEGINS}{function['name']}{_BETWEEN}")
        schema = orjson.dumps({**_ANY_OBJECT, **(function.get("parameters") or {}), "x-guidance": _SPACES}).decode()
        lines += [
            f"call_{number}: {begins} arguments_{number} {_literal(_ENDS)}",
            f"arguments_{number}: %json {schema}",
        ]
    return "\n".join(lines)


def forced_parser(tools: Sequence[dict[str, Any]]) -> MessageParser:
    """Reads an answer of that grammar."""
    return MessageParser(_template(), "", tools)


@cache
def _template() -> ResponseTemplate:
    return load(_FORCED)


def _literal(text: str) -> str:
    """The text as a string of Lark, which are JSON's."""
    return orjson.dumps(text).decode()
