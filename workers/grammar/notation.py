"""Writes a form as a grammar in llguidance's own notation. It compiles nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from baton_serve.core.protocol.openai.structured import Kind
from baton_serve.workers.grammar.schemas import in_known_words
from baton_serve.workers.grammar.sentences import in_words

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

#: Between the tokens of JSON there is at most a line's end and an indent. With more, a model may write nothing but
#: spaces until its answer is cut.
_WHITESPACE = r"\n?[ ]{0,16}"
#: No keyword that llguidance does not know is ignored.
_JSON_OPTIONS: JsonCompileOptions = {"whitespace_pattern": _WHITESPACE, "lenient": False, "coerce_one_of": False}


class NotationError(Exception):
    """The form cannot be written as a grammar. The message is a sentence for people."""


def grammar_of(kind: Kind, text: str) -> str:
    """The grammar of a form. Raises NotationError. May take a second for a long grammar."""
    try:
        if kind == "json_schema":
            return _of_schema(text)
        if kind == "regex":
            return str(LLMatcher.grammar_from_regex(text))
        if kind == "choice":
            return str(LLMatcher.grammar_from_lark(_alternatives(orjson.loads(text))))
        return str(LLMatcher.grammar_from_lark(any_to_lark(text)))
    except MemoryError:
        raise
    except Exception as error:  # its converters of grammars raise whatever their parsers do, a plain Exception too
        raise NotationError(in_words(str(error)) or type(error).__name__) from error


def _of_schema(text: str) -> str:
    schema = orjson.loads(text)
    if isinstance(schema, dict):
        schema.pop("x-guidance", None)  # llguidance's options, which are not the client's
        text = orjson.dumps(in_known_words(schema)).decode()
    return str(LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS))


def _alternatives(texts: list[str]) -> str:
    """The Lark grammar of one of the texts. JSON's strings are Lark's."""
    return "start: " + " | ".join(orjson.dumps(text).decode() for text in dict.fromkeys(texts))
