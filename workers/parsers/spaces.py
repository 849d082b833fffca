"""Keeps whitespace from making the reading of an answer slow.

What may be the beginning of a mark is held back, and searched again from each of its characters with every token. A
pattern that begins with any number of spaces would hold back a whole run of them, and a client can make a model write
nothing but spaces. So a mark has a bounded number of them, whoever wrote the pattern; further ones are
part of the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers.utils.chat_parsing.response_templates import ResponseTemplate

#: Whitespace in one place of a mark. Models write two newlines at most.
MAX_SPACES = 16
#: Any number of spaces in a pattern. Classes and other escapes are found first, so that nothing inside is taken for it.
_ANY_SPACES = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\s(?P<least>[*+])|\\.", re.DOTALL)
_PATTERNS = ("open_pattern", "close_pattern")


def bounded(pattern: str) -> str:
    """The pattern with at most ``MAX_SPACES`` where it has any number of spaces."""

    def replace(match: re.Match[str]) -> str:
        least = match["least"]
        return match[0] if least is None else rf"\s{{{1 if least == '+' else 0},{MAX_SPACES}}}"

    return _ANY_SPACES.sub(replace, pattern)


def load(template: dict[str, Any]) -> ResponseTemplate:
    """The response template, ready for parsers."""
    from transformers.utils.chat_parsing.response_templates import load_response_template

    fields = {
        name: {**part, **{key: bounded(part[key]) for key in _PATTERNS if key in part}}
        for name, part in template["fields"].items()
    }
    return load_response_template({**template, "fields": fields})
