"""Structured output with real processes: P masks the first token, D the others, and whoever goes on after a death."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack
from tests.kits.whole.streams import both_ways, chunks_of

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["relay", "sprint"]},
        "laps": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 99}, "maxItems": 3},
        "won": {"type": "boolean"},
    },
    "required": ["name", "kind", "laps", "won"],
    "additionalProperties": False,
}
BY_SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "race", "schema": SCHEMA}}}
LIST = 'root ::= "[" item ("," item)? "]"\nitem ::= "red" | "green"'
LARK = 'start: "[" item ("," item)? "]"\nitem: "red" | "green"'
KINDS: list[tuple[dict[str, Any], str]] = [
    ({"regex": "(yes|no), [0-9]{4}"}, "(yes|no), [0-9]{4}"),
    ({"choice": ["red", "green", "dark blue"]}, "red|green|dark blue"),
    ({"grammar": LIST}, r"\[(red|green)(,(red|green))?\]"),
    ({"grammar": LARK}, r"\[(red|green)(,(red|green))?\]"),
]
MAX_TOKENS = 200
#: Compiling it takes minutes and gigabytes.
DEADLY = {"allOf": [{"type": "integer", "multipleOf": 9973}, {"type": "integer", "multipleOf": 9967}]}


async def same(stack: Stack, both: Stack, **asked: Any) -> str:
    """What P and D say together, to its end."""
    choice = await both_ways(stack, both, **{"max_tokens": MAX_TOKENS, "temperature": 1, **asked})
    assert choice["finish_reason"] == "stop"
    return str(choice["text"])


def check_race(text: str) -> None:
    """Check the schema by hand."""
    race = json.loads(text)
    assert list(race) == ["name", "kind", "laps", "won"]
    assert isinstance(race["name"], str) and len(race["name"]) <= 12
    assert race["kind"] in ("relay", "sprint")
    assert len(race["laps"]) <= 3 and all(isinstance(lap, int) and 1 <= lap <= 99 for lap in race["laps"])
    assert isinstance(race["won"], bool)


@pytest.mark.parametrize("seed", range(4))
async def test_json_by_a_schema(stack: Stack, both: Stack, seed: int) -> None:
    check_race(await same(stack, both, seed=seed, **BY_SCHEMA))


@pytest.mark.parametrize(("asked", "pattern"), KINDS)
async def test_other_kinds(stack: Stack, both: Stack, asked: dict[str, Any], pattern: str) -> None:
    for seed in range(3):
        assert re.fullmatch(pattern, await same(stack, both, structured_outputs=asked, seed=seed))


async def test_with_the_other_parameters(stack: Stack, both: Stack) -> None:
    """Whatever they ban or prefer, the answer keeps to its form; where they leave nothing, the form wins."""
    more = {"logprobs": 2, "frequency_penalty": 1.5, "repetition_penalty": 1.3, "top_p": 0.9, "min_tokens": 60}
    check_race(await same(stack, both, seed=3, **more, **BY_SCHEMA))
    choice = {"structured_outputs": {"choice": ["red", "green"]}, "bad_words": ["green"]}
    assert await same(stack, both, **choice, seed=1) in ("red", "green")
    assert await same(stack, both, structured_outputs={"regex": "ab[0-9]{9}"}, stop="b", seed=1) == "a"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_is_the_whole(stack: Stack, path: str) -> None:
    asked = {"temperature": 1, "seed": 9, "max_tokens": MAX_TOKENS, **BY_SCHEMA}
    prompt = (
        {"prompt": "The baton"}
        if path == "/v1/completions"
        else {"messages": [{"role": "user", "content": "The baton"}]}
    )
    (choice,) = (await stack.post(path, **prompt, **asked)).json()["choices"]
    text = choice["text"] if path == "/v1/completions" else choice["message"]["content"]
    check_race(text)
    answer = await stack.post(path, stream=True, **prompt, **asked)
    streamed = [one for chunk in chunks_of(answer.text) for one in chunk["choices"]]
    assert text == "".join(
        one["text"] if path == "/v1/completions" else one["delta"].get("content") or "" for one in streamed
    )


@pytest.mark.parametrize(
    ("asked", "param", "says"),
    [
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed group"),
        ({"structured_outputs": {"grammar": "start: start"}}, "structured_outputs.grammar", "can ever complete"),
        ({"structured_outputs": {"json": DEADLY}}, "structured_outputs.json", "it takes too"),
    ],
)
async def test_a_form_that_cannot_be(stack: Stack, asked: dict[str, Any], param: str, says: str) -> None:
    """It is refused with words, and nobody else's answer suffers."""
    prompt = reference.prompt_of(20, seed=1)
    options = {"max_tokens": 60, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    before = await stack.complete(prompt, **options)
    other = asyncio.create_task(stack.complete(prompt, **options))
    body = {"model": MODEL, "prompt": "x", **asked}
    answers = await asyncio.gather(
        *(stack.http.post(f"{stack.router.url}/v1/completions", json=body) for _ in range(3))
    )
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param), answer.text
        assert says in error["message"]
    assert (await other)["choices"] == before["choices"]
    await stack.until_idle()
