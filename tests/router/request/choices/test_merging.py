"""One answer of several: choices, usage, and the events that come once."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.choice import Choice
from baton_serve.core.protocol.errors import UpstreamError
from baton_serve.core.protocol.openai.choices import Choices
from baton_serve.router.request.choices.merging import ChoiceEvents, last_events, merged, merged_usage, parsed
from baton_serve.router.upstream.events import DONE_EVENT

CHOICE = Choice("a", 2, 7)


def event(**fields: Any) -> bytes:
    return b"data: " + orjson.dumps({"id": "cmpl-b", "created": 1, **fields}) + b"\n\n"


def text(index: int, content: str = "x") -> bytes:
    return event(choices=[{"index": index, "text": content}])


USAGE = event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7})


def answer(*logprobs: float | None, tokens: int = 2, cached: int = 1) -> dict[str, Any]:
    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    shown = {"token_logprobs": list(logprobs)} if logprobs else None
    choice = {"index": 0, "text": str(logprobs), "logprobs": shown}
    return {"id": "a", "choices": [choice], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached}}}


def test_a_prompt_counts_once_in_the_usage() -> None:
    usages = [answer(tokens=2, cached=1)["usage"], answer(tokens=3, cached=4)["usage"], None]
    assert merged_usage(usages, 3) == {
        "prompt_tokens": 5,
        "completion_tokens": 5,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    two = merged_usage(usages[:2], 1)
    assert two is not None and (two["prompt_tokens"], two["prompt_tokens_details"]) == (10, {"cached_tokens": 5})
    thinking = [{**usages[0], "completion_tokens_details": {"reasoning_tokens": n}} for n in (2, 3)]
    thought = merged_usage([*thinking, usages[1]], 3)
    assert thought is not None and thought["completion_tokens_details"] == {"reasoning_tokens": 5}
    assert merged_usage([None, None], 2) is None
    assert merged_usage([{"prompt_tokens": 1, "completion_tokens": 1}], 1) == {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "total_tokens": 2,
    }


def test_the_best_by_mean_logprob_come_first() -> None:
    def answers() -> list[dict[str, Any]]:
        return [answer(-3, -3), answer(-1, None, -1), answer(), answer(-2)]

    found = orjson.loads(merged(answers(), Choices(2, 4), shows_logprobs=False))
    assert [(one["index"], one["text"]) for one in found["choices"]] == [(0, "(-1, None, -1)"), (1, "(-2,)")]
    assert [one["logprobs"] for one in found["choices"]] == [None, None]
    assert found["usage"]["completion_tokens"] == 8
    shown = orjson.loads(merged(answers(), Choices(1, 4), shows_logprobs=True))
    assert shown["choices"][0]["logprobs"] == {"token_logprobs": [-1, None, -1]}


def test_the_prompt_with_which_answers_begin_does_not_count() -> None:
    prompt = [None, -9, -9, -9, -9]
    answers = [answer(*prompt, -2), answer(*prompt, -3, -3, -3, -3, -3, -3, -3, -3), answer(*prompt)]
    found = orjson.loads(merged(answers, Choices(1, 3), shows_logprobs=True))
    assert found["choices"][0]["logprobs"]["token_logprobs"][5:] == [-2]


def test_each_prompt_has_its_own_best_answers() -> None:
    answers = [answer(-3), answer(-1), answer(-1), answer(-3)]
    found = orjson.loads(merged(answers, Choices(1, 2, ("x", "y")), shows_logprobs=True))
    assert [(one["index"], one["text"]) for one in found["choices"]] == [(0, "(-1,)"), (1, "(-1,)")]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[1]}', b'{"choices":5}', b"null"])
def test_a_malformed_answer_is_an_error_of_the_worker(body: bytes) -> None:
    with pytest.raises(UpstreamError):
        parsed(body)


TEXTS = [
    text(2),
    text(2, '"choices":[] data: [DONE]'),
    text(2, 'event data: {"choices":[]}'),
    b":5\n" + text(2),
    b":\n\n",
]


@given(st.lists(st.sampled_from(TEXTS)))
def test_an_event_that_names_its_choice_is_passed_on(events: list[bytes]) -> None:
    taken = ChoiceEvents(CHOICE, "cmpl-")
    assert taken.take(b"".join(events), named=True) == b"".join(events)
    assert taken.usage is None


@given(st.lists(st.sampled_from(TEXTS)), st.booleans())
def test_a_renamed_event_keeps_its_text(events: list[bytes], spaced: bool) -> None:
    sent = b"".join(events) if spaced else b"".join(events).replace(b'data: {"id', b'data:{"id')
    got = ChoiceEvents(CHOICE, "cmpl-").take(sent, named=False)
    assert got.replace(b"cmpl-a", b"cmpl-b").replace(b'"created":7', b'"created":1') == b"".join(
        one if b"data" in one else one.strip() and one for one in events
    )


@pytest.mark.parametrize("choices", [[1], 3, [None], None, {}])
def test_an_event_with_malformed_choices_is_an_error_of_the_worker(choices: Any) -> None:
    with pytest.raises(UpstreamError):
        ChoiceEvents(CHOICE, "cmpl-").take(event(choices=choices), named=False)


def test_an_error_event_is_passed_on_without_a_choice() -> None:
    error = b'data: {"error":{"message":"x"}}\n\n'
    assert ChoiceEvents(CHOICE, "cmpl-").take(error, named=False) == error


def test_an_answer_with_malformed_logprobs_is_not_the_best() -> None:
    odd: dict[str, Any] = {"choices": [{"index": 0, "text": "odd", "logprobs": [1]}]}
    assert orjson.loads(merged([odd, answer(-1)], Choices(1, 2), shows_logprobs=False))["choices"][0]["text"] == "(-1,)"


def test_the_usage_and_the_last_event_of_a_choice_are_left_out() -> None:
    events = ChoiceEvents(CHOICE, "cmpl-")
    assert events.take(text(2) + USAGE + DONE_EVENT, named=True) == text(2)
    assert events.usage is not None and events.usage["usage"]["total_tokens"] == 7
    assert events.take(DONE_EVENT, named=True) == b""


def test_an_event_that_does_not_know_of_choices_is_renamed() -> None:
    events = ChoiceEvents(CHOICE, "cmpl-")
    got = events.take(b":3\n" + text(0) + b": nothing\n\n" + b"data: no json\n\n" + USAGE + DONE_EVENT, named=False)
    renamed = b'data: {"id":"cmpl-a","created":7,"choices":[{"index":2,"text":"x"}]}\n\n'
    assert got == b":3\n" + renamed + b": nothing\n\n" + b"data: no json\n\n"
    assert events.usage is not None


def test_all_choices_end_with_one_usage_and_one_last_event() -> None:
    first = orjson.loads(USAGE[6:])
    assert last_events([None, None], 2, shows_usage=True) == DONE_EVENT
    assert last_events([first], 1, shows_usage=False) == DONE_EVENT
    usage = orjson.loads(last_events([first, first], 2, shows_usage=True).removesuffix(DONE_EVENT)[6:])
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 8
    assert usage["usage"]["prompt_tokens"] == 3
