"""Questions for more than one text: what they are made of, and what is right about their answers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from baton_serve.baton.torture.clients.client import take
from baton_serve.baton.torture.clients.features import num_per_prompt, prompts, several, singles, tools
from baton_serve.baton.torture.clients.one_stream import OneStream
from baton_serve.baton.torture.clients.questions import make_questions
from baton_serve.baton.torture.records import AnswerError, Attempt, ClientAnswer, Ending, Question
from baton_serve.baton.torture.verdict.validate import Verdict, judge
from baton_serve.core.protocol.openai.choices import take_choices
from baton_serve.core.protocol.openai.requests import ChatRequest, CompletionRequest, validate

HEAD = {"id": "x", "object": "o", "created": 5, "model": "m", "system_fingerprint": "f", "usage": None}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def test_every_question_is_a_request_and_so_are_its_parts() -> None:
    questions = make_questions(3, 200)
    kinds = {name for question in questions for name in question.body}
    assert kinds >= {"n", "response_format", "tools", "tool_choice", "messages", "prompt", "echo", "prompt_logprobs"}
    assert {0, 1} <= {question.body["max_tokens"] for question in questions if "echo" in question.body}
    for question in questions:
        kind: Any = ChatRequest if question.chat else CompletionRequest
        body = {"model": "m", **question.body}
        choices = take_choices(body, chat=question.chat)
        validate(kind, body)
        parts = list(singles(question))
        assert len(parts) == (1 if choices is None else choices.num_computed)
        for part in parts:
            validate(kind, {"model": "m", **part.body})


def test_the_parts_of_a_question() -> None:
    rng = random.Random(1)
    question = Question(1, False, prompts(rng, several(rng, {"prompt": [1, 2, 3], "temperature": 0})))
    n, seed = question.body["n"], question.body["seed"]
    parts = [(part.body["prompt"], part.body["seed"]) for part in singles(question)]
    assert parts == [(prompt, seed + index) for prompt in question.body["prompt"] for index in range(n)]
    assert num_per_prompt(question) == n and question.body["temperature"] == 1
    assert "stop" not in tools(rng, {"stop": ["a"]})


def test_choices_and_calls_are_read_as_they_come() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "drop", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": "{}"}}
    answer = ClientAnswer()
    for delta in ({"role": "assistant", "content": ""}, {"tool_calls": [call]}, {"tool_calls": [more]}):
        take(answer, {"choices": [{"index": 1, "delta": delta, "finish_reason": None}]})
    take(answer, {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]})
    assert [choice.text for choice in answer.choices] == ["a", "[drop]{}"]
    whole = ClientAnswer()
    called = {"content": None, "tool_calls": [{**call, "function": {"name": "drop", "arguments": "{}"}}]}
    message = {"index": 1, "message": called, "finish_reason": None}
    take(whole, {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}, message]})
    assert whole == answer
    with pytest.raises(AnswerError):
        take(ClientAnswer(), {"choices": [{"index": -1, "delta": {}, "finish_reason": None}]})


def test_logprobs_of_a_prompt_are_read_and_judged() -> None:
    entry = {"logprob": -1.0, "rank": 2, "decoded_token": "a"}
    given = [None, {"7": entry, "8": {**entry, "logprob": -0.5, "rank": 1}}]
    lists = {"tokens": ["x", "a"], "token_logprobs": [None, -1.0], "text_offset": [0, 1], "top_logprobs": [None, {}]}
    choice = {"text": "xa", "finish_reason": "length", "prompt_logprobs": given, "logprobs": lists}

    def judged(**changes: Any) -> Verdict:
        expected, seen = ClientAnswer(), ClientAnswer()
        take(expected, {"choices": [choice]})
        take(seen, {"choices": [{**choice, **changes}]})
        attempt = Attempt(0, "router-0", False, 0.0, ended_s=1.0, ending=Ending.DONE, answer=seen)
        return judge(attempt, expected, []).verdict

    assert judged() is Verdict.EXACT
    assert judged(prompt_logprobs=given[:1]) is Verdict.WRONG
    assert judged(prompt_logprobs=[None, {"7": {**entry, "logprob": -1.2}, "8": entry}]) is Verdict.WRONG
    assert judged(prompt_logprobs=[given[1], given[1]]) is Verdict.WRONG
    assert judged(logprobs={**lists, "token_logprobs": [-3.0, -1.0]}) is Verdict.WRONG


def event(index: int, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def test_choices_of_a_stream_come_in_any_order_and_each_in_its_own() -> None:
    role = {"role": "assistant"}
    stream = OneStream(chat=True, num_choices=2)
    for one in (event(1, **role), event(0, **role), event(1, "stop"), event(0, content="x"), event(0, "length")):
        stream.take(one)
    stream.take({**HEAD, "choices": [], "usage": USAGE})
    stream.end()
    for wrong in (event(2, **role), event(0, content="x")):
        with pytest.raises(AnswerError):
            OneStream(chat=True, num_choices=2).take(wrong)
    half = OneStream(chat=True, num_choices=2)
    for one in (event(0, **role), event(0, "stop")):
        half.take(one)
    with pytest.raises(AnswerError, match="before the finish reason"):
        half.take({**HEAD, "choices": [], "usage": USAGE})


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ([ClientAnswer("b", "stop")], Verdict.EXACT),
        ([ClientAnswer("c", "stop")], Verdict.WRONG),
        ([ClientAnswer("b", "length")], Verdict.WRONG),
        ([], Verdict.WRONG),
        ([ClientAnswer("b", "stop"), ClientAnswer("b", "stop")], Verdict.WRONG),
    ],
)
def test_every_choice_is_judged(others: list[ClientAnswer], verdict: Verdict) -> None:
    expected = ClientAnswer("a", "stop", (1, 2), others=[ClientAnswer("b", "stop")])
    seen = ClientAnswer("a", "stop", (1, 2), others=others)
    attempt = Attempt(0, "router-0", True, 0.0, ended_s=1.0, ending=Ending.DONE, answer=seen)
    assert judge(attempt, expected, []).verdict is verdict
