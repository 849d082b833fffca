"""Long lists of logprobs: encoded while they grow, and cut for the events of a stream."""

from __future__ import annotations

import orjson
import pytest

from baton_serve.core.protocol.steps import PromptScores
from baton_serve.router.upstream.events import MAX_EVENT_BYTES
from baton_serve.workers.text.json_list import NUM_TOGETHER, JsonList
from baton_serve.workers.text.logprobs import CompletionLogprobs
from baton_serve.workers.text.shown_prompt import PromptLogprobs, ShownPrompt


@pytest.mark.parametrize("length", [0, 1, NUM_TOGETHER - 1, NUM_TOGETHER, NUM_TOGETHER + 1, 3 * NUM_TOGETHER + 7])
def test_a_list_is_the_same_however_long_it_is(length: int) -> None:
    values = [None, *({"a\n": [index, -0.1]} for index in range(length - 1))][:length]
    found = JsonList()
    found.extend(values)
    assert len(found) == length
    assert orjson.loads(orjson.dumps({"x": found.value()})) == {"x": values}
    assert isinstance(found.value(), list) == (length < NUM_TOGETHER), "short ones can be looked at"


def test_a_list_that_is_shown_may_still_grow() -> None:
    found = JsonList()
    found.append(1)
    before = found.value()
    found.append(2)
    assert (before, found.value()) == ([1], [1, 2])


@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_no_part_is_larger_than_what_a_router_takes(num_top: int) -> None:
    """Whatever the tokens are: these have the longest names that a few bytes can have."""
    num_tokens = 3000
    names = CompletionLogprobs(lambda token: bytes([255 - token % 5]) * 8)
    prompt = ShownPrompt(range(num_tokens), ["\x00" * 8] * num_tokens, names, num_top=num_top, in_parts=True)
    values = [-1.2345678901234567] * (num_tokens - 1)
    tops = [list(range(20))] * (num_tokens - 1)
    scores = PromptScores(1, 1, values, [1] * len(values), tops, [values[:20]] * len(values))
    for _ in prompt.add(scores):
        pass
    parts = list(prompt.parts())
    sizes = [len(orjson.dumps(part)) for part in parts]
    assert max(sizes) < MAX_EVENT_BYTES // 2
    assert sum(len(logprobs["tokens"] if logprobs else ()) for _, logprobs in map(_plain, parts)) == num_tokens
    assert sum(len(text) for text, _ in parts) == 8 * num_tokens


def _plain(part: object) -> tuple[str, dict[str, list[object]]]:
    text, logprobs = orjson.loads(orjson.dumps(part))
    return text, logprobs


def test_numbers_that_json_does_not_have_are_the_least_one() -> None:
    found = PromptLogprobs(lambda token: b"x", 2)
    found.add(3, float("-inf"), 7, [4, 5], [float("nan"), -0.5])
    assert found.value() == [
        None,
        {
            "3": {"logprob": -9999.0, "rank": 7, "decoded_token": "x"},
            "4": {"logprob": -9999.0, "rank": 1, "decoded_token": "x"},
            "5": {"logprob": -0.5, "rank": 2, "decoded_token": "x"},
        },
    ]
