"""JSON schemas in words that llguidance does not know, as tools and typed languages make them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from baton_serve.workers.grammar.notation import NotationError, grammar_of
from baton_serve.workers.grammar.schemas import MAX_WRITTEN_BYTES, TooLongError, in_known_words
from tests.kits.worker.grammar import follows

INTEGERS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
COLORS = {"$defs": {"Color": {"type": "string", "title": "Color", "enum": ["red", "blue"]}}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        # Zod writes this for any record, and pydantic an enum behind a reference.
        ({**INTEGERS, "propertyNames": {"type": "string"}}, ['{"a": 1}', "{}"], ['{"a": "x"}']),
        ({**INTEGERS, "propertyNames": True}, ['{"a": 1}'], ['{"a": "x"}']),
        (
            {**INTEGERS, **COLORS, "propertyNames": {"$ref": "#/$defs/Color"}},
            ['{"red": 1}', '{"red": 1, "blue": 2}', "{}"],
            ['{"green": 1}', '{"red": "x"}'],
        ),
        ({**INTEGERS, "propertyNames": {"const": "red"}}, ['{"red": 1}'], ['{"blue": 1}']),
        ({**INTEGERS, "propertyNames": {"pattern": "^[a-z]+$"}}, ['{"ab": 1}', "{}"], ['{"aB": 1}', '{"ab": "x"}']),
        (
            {**INTEGERS, "propertyNames": {"type": "string", "minLength": 2, "maxLength": 3}},
            ['{"ab": 1}', '{"abc": 1}'],
            ['{"a": 1}', '{"abcd": 1}'],
        ),
        (
            {
                "type": "object",
                "properties": {"ab": {"type": "string"}, "B": {}},
                "propertyNames": {"pattern": "^[a-z]+$"},
            },
            ['{"ab": "x"}', '{"c": [1]}'],
            ['{"B": 1}', '{"C": 1}'],
        ),
        (
            {**INTEGERS, "properties": {"ab": {"type": "string"}, "b": {}}, "propertyNames": {"pattern": "^a"}},
            ['{"ab": "x", "ac": 1}'],
            ['{"ac": "x"}', '{"b": 1}'],
        ),
        (
            {**INTEGERS, "allOf": [{"properties": {"a": {"const": 1}}}], "propertyNames": {"maxLength": 1}},
            ['{"a": 1}', '{"b": 2}'],
            ['{"a": 2}', '{"ab": 1}'],
        ),
        # Python's ``re`` would not end for it in a lifetime.
        (
            {"properties": {"a" * 40 + "!": {}, "aa": {}}, "propertyNames": {"pattern": "^(a+)+$"}},
            ['{"aa": 1}', "1"],
            ['{"' + "a" * 40 + '!": 1}', '{"b": 1}'],
        ),
        ({"type": "array", "items": {**INTEGERS, "propertyNames": {"title": "Name"}}}, ['[{"a": 1}]'], ['[{"a": ""}]']),
        (
            {"type": "object", "properties": {"propertyNames": {"type": "string", "format": "password"}}},
            ['{"propertyNames": "x"}'],
            ['{"propertyNames": 1}'],
        ),
        *[({"type": "string", "format": name}, ['"x"'], ["1"]) for name in ("password", "binary", "path", "int32")],
        ({"anyOf": [{"type": "string", "format": "file-path"}, {"type": "null"}]}, ['"x"', "null"], ["1"]),
        ({"type": "string", "format": "date"}, ['"2026-11-29"'], ['"x"']),
    ],
)
def test_they_are_followed(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    before = json.dumps(schema)
    assert [follows("json_schema", before, text) for text in good] == [True] * len(good)
    assert [follows("json_schema", before, text) for text in bad] == [False] * len(bad)
    in_known_words(schema)
    assert json.dumps(schema) == before, "the schema belongs to the request"


def refusal(schema: dict[str, Any]) -> str:
    return LLMatcher.validate_grammar(grammar_of("json_schema", json.dumps(schema)))


@pytest.mark.parametrize(
    "names",
    [
        {"format": "uuid"},
        {"pattern": "^a", "minLength": 2},
        {"pattern": 5},
        {"minLength": "x"},
        {"$ref": "#/nowhere"},
        {"not": {"const": "a"}},
        False,
    ],
)
def test_names_of_which_more_is_demanded_are_refused(names: Any) -> None:
    """They are not ignored."""
    assert "propertyNames" in refusal({**INTEGERS, "propertyNames": names})


def nested(num_names: int, depth: int) -> dict[str, Any]:
    """Objects in each other, each with these names."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        names = {"enum": [str(number) for number in range(num_names)]}
        schema = {"type": "object", "propertyNames": names, "additionalProperties": schema}
    return schema


def referred(names: dict[str, Any], times: int) -> dict[str, Any]:
    return {"$defs": {"Names": names}, "anyOf": [{"propertyNames": {"$ref": "#/$defs/Names"}} for _ in range(times)]}


@pytest.mark.parametrize(
    "schema",
    [
        nested(2, 60),
        nested(30, 6),
        referred({"enum": [str(number) for number in range(5000)]}, 400),
        referred({"enum": ["x" * 30_000]}, 400),
        referred({"pattern": "x" * 30_000}, 400),
        {"anyOf": [nested(60, 2) for _ in range(40)]},
    ],
)
def test_what_becomes_too_long_in_other_words_is_refused(schema: dict[str, Any]) -> None:
    """Before it is written; 60 levels of two names could never be."""
    with pytest.raises(NotationError, match=f"'propertyNames' take more than {MAX_WRITTEN_BYTES} bytes"):
        grammar_of("json_schema", json.dumps(schema))
    with pytest.raises(TooLongError):
        in_known_words(schema)


def test_what_does_not_multiply_may_be_long() -> None:
    schema = nested(1, 60)
    schema["description"] = "x" * 60_000
    assert refusal(schema) == refusal(nested(40, 2)) == ""


def test_nothing_is_looked_for_among_many_keywords_once_for_each_reference() -> None:
    """They cannot be said anyway."""
    schema = referred({**dict.fromkeys(map(str, range(20)), 1), "pattern": "a"}, 2)
    assert in_known_words(schema) == schema


@pytest.mark.parametrize("names", [{"pattern": "("}, {"minLength": -1}, {"minLength": 2, "maxLength": 1}])
def test_names_that_none_can_have_are_refused(names: dict[str, Any]) -> None:
    assert "regex parse error" in refusal({**INTEGERS, "propertyNames": names})


def test_a_format_that_json_schema_defines_is_not_ignored() -> None:
    assert "iri" in refusal({"type": "string", "format": "iri"})


@pytest.mark.parametrize("wrong", [{"properties": [], "propertyNames": {"enum": [[]]}}, {"format": []}, {"items": 5}])
def test_what_is_no_schema_is_left_to_the_library(wrong: dict[str, Any]) -> None:
    assert refusal(wrong)
