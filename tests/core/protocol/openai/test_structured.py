"""Which form an answer must have: what clients may ask for, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.requests import CompletionRequest, validate
from baton_serve.core.protocol.openai.structured import (
    MAX_CHOICES,
    MAX_FORM_BYTES,
    MAX_REFERENCES,
    MAX_RULE_MARKS,
    Form,
)

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
OBJECT = '{"type":"object"}'


def form(**asked: Any) -> Form | None:
    return validate(CompletionRequest, {"model": "m", "prompt": "x", **asked}).form


def by_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Form("json_schema", OBJECT, "response_format")),
        ({"response_format": by_schema(SCHEMA)}, Form("json_schema", TEXT, "response_format")),
        (
            {"response_format": by_schema(SCHEMA, strict=True, description="d")},
            Form("json_schema", TEXT, "response_format"),
        ),
        ({"response_format": by_schema(SCHEMA, strict=False)}, Form("json_schema", TEXT, "response_format")),
        ({"structured_outputs": {"json": SCHEMA}}, Form("json_schema", TEXT, "structured_outputs.json")),
        ({"structured_outputs": {"json": TEXT}}, Form("json_schema", TEXT, "structured_outputs.json")),
        ({"structured_outputs": {"regex": "a+"}}, Form("regex", "a+", "structured_outputs.regex")),
        ({"structured_outputs": {"choice": ["a", "é"]}}, Form("choice", '["a","é"]', "structured_outputs.choice")),
        ({"structured_outputs": {"grammar": "g"}}, Form("grammar", "g", "structured_outputs.grammar")),
        (
            {"structured_outputs": {"json_object": True, "regex": None}},
            Form("json_schema", OBJECT, "structured_outputs.json_object"),
        ),
        (
            {"response_format": {"type": "text"}, "structured_outputs": {"regex": "a", "json_object": False}},
            Form("regex", "a", "structured_outputs.regex"),
        ),
    ],
)
def test_each_way_to_ask_for_a_form_is_understood(asked: dict[str, Any], wanted: Form | None) -> None:
    assert form(**asked) == wanted


@pytest.mark.parametrize(
    ("asked", "param", "says"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {}}, "response_format.type", "Missing"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "Missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
            "Missing",
        ),
        ({"response_format": by_schema(5)}, "response_format.json_schema.schema", "an object"),
        ({"response_format": by_schema({}, more=1)}, "response_format.json_schema.more", "Unknown"),
        ({"response_format": {**by_schema({}), "type": "text"}}, "response_format", "only allowed"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "got 0"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "got 2"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "exclude",
        ),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "ends where its form"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "a string"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "at least 1"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not JSON"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json", "not a JSON object"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]", "at least 1"),
        ({"structured_outputs": {"choice": ["a"] * (MAX_CHOICES + 1)}}, "structured_outputs.choice", "at most"),
        ({"structured_outputs": {"regex": "é" * (MAX_FORM_BYTES // 2 + 1)}}, "structured_outputs.regex", "bytes"),
        ({"structured_outputs": {"json": "x" * (MAX_FORM_BYTES + 1)}}, "structured_outputs.json", "bytes"),
        ({"response_format": by_schema({"title": "x" * MAX_FORM_BYTES})}, "response_format", "bytes"),
        (
            {"structured_outputs": {"json": {"anyOf": [{"$ref": "#"}] * (MAX_REFERENCES + 1)}}},
            "structured_outputs.json",
            "references",
        ),
        ({"structured_outputs": {"grammar": ":" * (MAX_RULE_MARKS + 1)}}, "structured_outputs.grammar", "colons"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "not supported"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern", "Unknown"),
    ],
)
def test_malformed_forms_are_refused_by_name(asked: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        form(**asked)
    assert caught.value.param == param
    assert says in caught.value.message


def test_forms_of_the_largest_size_are_taken() -> None:
    assert form(structured_outputs={"regex": "x" * MAX_FORM_BYTES}) is not None
    assert form(structured_outputs={"choice": ["a"] * MAX_CHOICES}) is not None
