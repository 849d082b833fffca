"""Forms in llguidance's notation: each is followed by what it should be, and by nothing else."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from baton_serve.core.protocol.openai.structured import Kind
from baton_serve.workers.grammar.notation import NotationError, grammar_of
from tests.kits.worker.grammar import follows


@pytest.mark.parametrize(
    ("kind", "form", "good", "bad"),
    [
        ("regex", "(a|b)+", ["a", "abba"], ["", "c", "ac"]),
        ("choice", json.dumps(["a", 'q"\\\n', "a"]), ["a", 'q"\\\n'], ["", "q", "aa"]),
        ("grammar", 'start: "a" b\nb: "c"', ["ac"], ["a", "c"]),
        ("grammar", 'root ::= "a" b\nb ::= "c"', ["ac"], ["a", "c"]),
        ("json_schema", '{"type":"object"}', ["{}", '{"a": [1, {"b": null}]}', '{\n  "a": 1\n}'], ["[]", "1", "{"]),
        ("json_schema", '{"type":"integer"}', ["5", "-1"], ["1.5", '"x"']),
        (
            "json_schema",
            '{"type":"array","items":{"type":"integer"},"x-guidance":{"whitespace_pattern":"x"}}',
            ["[1, 2]", "[]"],
            ["[1,x2]", "[1," + 17 * " " + "2]", "[1,\n\n2]"],
        ),
    ],
)
def test_kinds(kind: Kind, form: str, good: list[str], bad: list[str]) -> None:
    assert [follows(kind, form, text) for text in good] == [True] * len(good)
    assert [follows(kind, form, text) for text in bad] == [False] * len(bad)


def test_every_kind_is_written() -> None:
    texts = {"json_schema": "{}", "regex": "a", "choice": '["b"]', "grammar": 'start: "a"'}
    assert set(texts) == set(get_args(Kind))
    assert len({grammar_of(kind, texts[kind]) for kind in get_args(Kind)}) == len(texts)


def test_what_cannot_be_written() -> None:
    with pytest.raises(NotationError) as caught:
        grammar_of("grammar", 'root ::= "a')
    assert "\n" not in str(caught.value)
