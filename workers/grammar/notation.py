"""Writes a form as a grammar in llguidance's own notation. It compiles nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

    from core.protocol.openai.structured import Form

#: Between the tokens of JSON there is at most a line's end and an indent. With more, a model may write nothing but
#: spaces until its answer is cut.
_WHITESPACE = r"\n?[ ]{0,16}"
#: No keyword that llguidance does not know is ignored.
_JSON_OPTIONS: JsonCompileOptions = {"whitespace_pattern": _WHITESPACE, "lenient": False, "coerce_one_of": False}
_DETAILS_CHARS = 300


class NotationError(Exception):
    """The form cannot be written as a grammar. The message is one line for people."""


def grammar_of(form: Form) -> str:
    """The grammar of a form. Raises NotationError. May take a second for a long grammar, so call it in a thread."""
    try:
        if form.kind == "json_schema":
            return _of_schema(form.text)
        if form.kind == "regex":
            return str(LLMatcher.grammar_from_regex(form.text))
        if form.kind == "choice":
            return str(LLMatcher.grammar_from_lark(_alternatives(orjson.loads(form.text))))
        return str(LLMatcher.grammar_from_lark(any_to_lark(form.text)))
    except Exception as error:  # its converters of grammars raise whatever their parsers do, a plain Exception too
        raise NotationError(in_one_line(str(error) or type(error).__name__)) from error


def in_one_line(text: str) -> str:
    """The beginning of the text, without its line ends."""
    line = " ".join(text.split())
    return line if len(line) <= _DETAILS_CHARS else f"{line[:_DETAILS_CHARS]}..."


def _of_schema(text: str) -> str:
    schema = orjson.loads(text)
    if isinstance(schema, dict):
        schema.pop("x-guidance", None)  # llguidance's options, which are not the client's
        text = orjson.dumps(schema).decode()
    return str(LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS))


def _alternatives(texts: list[str]) -> str:
    """The Lark grammar of one of the texts. JSON's strings are Lark's."""
    return "start: " + " | ".join(orjson.dumps(text).decode() for text in dict.fromkeys(texts))
