"""Answers that are about their prompts: echo, prompt_logprobs, and no tokens at all."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from baton_serve.workers.server.answers.token_ids import ASKED, HEADER
from baton_serve.workers.text import json_list, shown_prompt
from tests.kits.worker.front import EOS, Front, chat, completion, front, text_of, tokens_of
from tests.kits.worker.hand_off import GOOD
from tests.kits.worker.streams import events_of

PROMPT = "the runner holds the baton; a team of two"
ANSWER = [*tokens_of(" until the other one has it"), EOS]
NAMES = {HEADER.decode(): ASKED}
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


async def ask(worker: Front, body: dict[str, Any], path: str = "/v1/completions") -> dict[str, Any]:
    answer = await worker.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def events(stream: str) -> list[dict[str, Any]]:
    return [event.chunk for event in events_of(stream)]


def check_offsets(text: str, logprobs: dict[str, Any]) -> None:
    """Each token is where its offset says; these are plain characters."""
    offsets = [*logprobs["text_offset"], len(text)]
    assert [text[a:b] for a, b in itertools.pairwise(offsets)] == logprobs["tokens"]


async def test_an_echo_without_logprobs_is_the_text_only() -> None:
    async with front(ANSWER) as worker:
        body = await ask(worker, completion(PROMPT, echo=True, max_tokens=3))
        (request,) = worker.engine.requests
    (choice,) = body["choices"]
    assert choice["text"] == PROMPT + text_of(ANSWER[:3]) and choice["logprobs"] is None
    assert "prompt_logprobs" not in choice
    assert request.sampling.num_prompt_logprobs is None, "the cache may be used"
    assert body["usage"]["completion_tokens"] == 3


async def test_an_echo_with_logprobs_lists_the_prompts_tokens_first() -> None:
    tokens = tokens_of(PROMPT)
    async with front(ANSWER) as worker:
        body = await ask(worker, completion(PROMPT, echo=True, logprobs=2, max_tokens=3))
        (request,) = worker.engine.requests
    (choice,) = body["choices"]
    logprobs = choice["logprobs"]
    assert {len(logprobs[name]) for name in LISTS} == {len(tokens) + 3}
    assert logprobs["token_logprobs"][: len(tokens) + 1] == [None, *(-float(i) for i in range(1, len(tokens))), -0.25]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {text_of([5]): -1.0, text_of([6]): -2.0, logprobs["tokens"][1]: -1.0}
    assert logprobs["top_logprobs"][2] == {logprobs["tokens"][2]: -2.0, text_of([5]): -3.0}
    check_offsets(choice["text"], logprobs)
    assert request.sampling.num_prompt_logprobs == 2


async def test_what_lm_eval_asks_for() -> None:
    tokens = tokens_of(PROMPT)
    for max_tokens in (0, 1):
        async with front(ANSWER) as worker:
            body = completion(tokens, echo=True, logprobs=1, max_tokens=max_tokens, temperature=0, seed=1)
            answer = await ask(worker, body)
        (choice,) = answer["choices"]
        logprobs = choice["logprobs"]
        assert choice["text"] == PROMPT + text_of(ANSWER[:max_tokens]) and choice["finish_reason"] == "length"
        assert logprobs["token_logprobs"][: len(tokens)] == [None, *(-float(i) for i in range(1, len(tokens)))]
        greedy = [
            logprob == max(top.values())
            for logprob, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True)
        ]
        assert greedy[: len(tokens) - 1] == [True] * (len(tokens) - 1)
        assert answer["usage"] == {
            "prompt_tokens": len(tokens),
            "completion_tokens": max_tokens,
            "total_tokens": len(tokens) + max_tokens,
            "prompt_tokens_details": {"cached_tokens": 3},
        }


async def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    async with front(ANSWER) as worker:
        body = await ask(worker, completion([70], echo=True, logprobs=1, prompt_logprobs=1, max_tokens=0))
    (choice,) = body["choices"]
    assert choice["text"] == text_of([70])
    assert [choice["logprobs"][name] for name in LISTS] == [[text_of([70])], [None], [None], [0]]
    assert choice["prompt_logprobs"] == [None]


async def test_prompt_logprobs_have_vllms_shape() -> None:
    tokens = tokens_of(PROMPT)
    async with front(ANSWER) as worker:
        of_completion = await ask(worker, completion(PROMPT, prompt_logprobs=2, max_tokens=1))
        of_chat = await ask(worker, chat("hello", prompt_logprobs=2, max_tokens=1), "/v1/chat/completions")
    entries = of_completion["choices"][0]["prompt_logprobs"]
    assert of_completion["choices"][0]["text"] == text_of(ANSWER[:1]), "no echo"
    assert len(entries) == len(tokens) and entries[0] is None
    assert [*entries[1]] == [str(tokens[1]), "5", "6"], "the prompt's own token comes first"
    assert entries[1] == {
        str(tokens[1]): {"logprob": -1.0, "rank": 9, "decoded_token": text_of([tokens[1]])},
        "5": {"logprob": -1.0, "rank": 1, "decoded_token": text_of([5])},
        "6": {"logprob": -2.0, "rank": 2, "decoded_token": text_of([6])},
    }
    assert entries[2] == {
        str(tokens[2]): {"logprob": -2.0, "rank": 1, "decoded_token": text_of([tokens[2]])},
        "5": {"logprob": -3.0, "rank": 2, "decoded_token": text_of([5])},
    }
    assert "prompt_logprobs" not in of_chat["choices"][0]
    assert len(of_chat["prompt_logprobs"]) == of_chat["usage"]["prompt_tokens"]


async def test_prompt_logprobs_and_an_echo_have_numbers_of_their_own() -> None:
    async with front(ANSWER) as worker:
        more = await ask(worker, completion(PROMPT, prompt_logprobs=3, echo=True, logprobs=1, max_tokens=0))
        fewer = await ask(worker, completion(PROMPT, prompt_logprobs=0, echo=True, logprobs=3, max_tokens=0))
        alone = await ask(worker, completion(PROMPT, prompt_logprobs=0, max_tokens=0))
    assert [len(choice["prompt_logprobs"][1]) for body in (more, fewer, alone) for choice in body["choices"]] == [
        4,
        1,
        1,
    ]
    assert more["choices"][0]["prompt_logprobs"][2]["6"]["logprob"] == -9999.0
    assert len(more["choices"][0]["logprobs"]["top_logprobs"][1]) == 2
    assert len(fewer["choices"][0]["logprobs"]["top_logprobs"][1]) == 4
    assert alone["choices"][0] == {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "prompt_logprobs": alone["choices"][0]["prompt_logprobs"],
    }


async def test_a_streamed_echo_begins_with_the_prompt() -> None:
    body = completion(PROMPT, echo=True, logprobs=2, max_tokens=3, stream=True, stream_options={"include_usage": True})
    async with front(ANSWER) as worker:
        whole = await ask(worker, {**body, "stream": False, "stream_options": None})
        stream = await worker.http.post("/v1/completions", json=body)
    chunks = events(stream.text)
    shown = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert shown[0]["text"] == PROMPT and shown[0]["logprobs"]["token_logprobs"][0] is None
    assert len(shown) == 1 + 3 + 1
    assert "".join(choice["text"] for choice in shown) == whole["choices"][0]["text"]
    logprobs = [choice["logprobs"] for choice in shown if choice["logprobs"]]
    for name in LISTS:
        assert [value for one in logprobs for value in one[name]] == whole["choices"][0]["logprobs"][name]
    assert shown[-1]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize("logprobs", [None, 1])
async def test_a_long_prompt_is_echoed_in_parts(logprobs: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_prompt, "PART_BYTES", 3 * shown_prompt.TOKEN_BYTES * (1 if logprobs is None else 3))
    body = completion(PROMPT, echo=True, logprobs=logprobs, max_tokens=2, stream=True)
    async with front(ANSWER) as worker:
        whole = await ask(worker, {**body, "stream": False})
        stream = await worker.http.post("/v1/completions", json=body)
    shown = [chunk["choices"][0] for chunk in events(stream.text)]
    num_parts = -(-len(tokens_of(PROMPT)) // 3)
    assert num_parts > 2 and len(shown) == num_parts + 2 + 1
    assert shown[0]["text"] == text_of(tokens_of(PROMPT)[:3])
    assert "".join(choice["text"] for choice in shown) == whole["choices"][0]["text"]
    if logprobs is not None:
        for name in LISTS:
            streamed = [value for choice in shown if choice["logprobs"] for value in choice["logprobs"][name]]
            assert streamed == whole["choices"][0]["logprobs"][name]


async def test_a_streamed_echo_may_be_all() -> None:
    body = completion(PROMPT, echo=True, logprobs=1, max_tokens=0, stream=True)
    async with front(ANSWER) as worker:
        stream = await worker.http.post("/v1/completions", json=body, headers=NAMES)
    prompt, end = stream.text.split("\n:end\n")
    assert prompt.startswith(":\ndata: "), "it names no token, and is not a whole answer without the end"
    assert [chunk["choices"][0]["text"] for chunk in events(stream.text)] == [PROMPT, ""]
    assert events(end)[0]["choices"][0]["finish_reason"] == "length"
    assert stream.text.endswith("data: [DONE]\n\n")


async def test_ids_and_usage_come_with_each_part() -> None:
    tokens = tokens_of(PROMPT)
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = completion(PROMPT, echo=True, max_tokens=2, stream=True, stream_options=options, return_token_ids=True)
    async with front(ANSWER) as worker:
        stream = await worker.http.post("/v1/completions", json=body)
    first, second, *_ = events(stream.text)
    assert (first["choices"][0]["token_ids"], first["choices"][0]["prompt_token_ids"]) == ([], tokens)
    assert first["usage"]["completion_tokens"] == 0 and first["usage"]["prompt_tokens"] == len(tokens)
    assert second["choices"][0]["token_ids"] == ANSWER[:1] and "prompt_token_ids" not in second["choices"][0]
    assert second["usage"]["completion_tokens"] == 1


async def test_nothing_is_streamed_before_all_of_the_prompt_is_scored() -> None:
    body = completion(PROMPT, echo=True, logprobs=1, max_tokens=2, stream=True)
    async with front(ANSWER) as worker:
        worker.engine.gate = asyncio.Semaphore(2)
        async with asyncio.timeout(60):
            task = asyncio.create_task(worker.http.post("/v1/completions", json=body))
            await worker.engine.until_running()
            (request,) = worker.engine.requests
            assert worker.engine.abort(request.request_id)
            answer = await task
    assert answer.status_code >= 400, "an error before the answer has a status of its own"
    assert answer.json()["error"]["code"] == "aborted"


async def test_a_stream_goes_on_after_an_echo() -> None:
    """The prompt is not shown again, and not scored; the offsets go on."""
    body = completion(PROMPT, echo=True, logprobs=1, max_tokens=4, stream=True)
    async with front(ANSWER) as worker:
        whole = await ask(worker, {**body, "stream": False})
        params = {"resume": {"token_ids": ANSWER[:2], "created": 5}}
        rest = await worker.http.post("/v1/completions", json={**body, "kv_transfer_params": params}, headers=NAMES)
        params = {"resume": {"token_ids": [], "created": 5}}
        all_tokens = await worker.http.post("/v1/completions", json={**body, "kv_transfer_params": params})
        ended = {**body, "max_tokens": 0, "kv_transfer_params": params}
        nothing = await worker.http.post("/v1/completions", json=ended, headers=NAMES)
        requests = worker.engine.requests[1:]
    lists = whole["choices"][0]["logprobs"]
    for stream, num_given in ((rest, 2), (all_tokens, 0)):
        shown = [chunk["choices"][0] for chunk in events(stream.text)]
        assert "".join(choice["text"] for choice in shown) == text_of(ANSWER[num_given:4])
        first = len(tokens_of(PROMPT)) + num_given
        for name in LISTS:
            got = [value for choice in shown if choice["logprobs"] for value in choice["logprobs"][name]]
            assert got == lists[name][first:]
    assert [chunk["choices"][0]["text"] for chunk in events(nothing.text)] == [""]
    assert nothing.text.startswith(":end\n")
    assert [request.sampling.num_prompt_logprobs for request in requests] == [None] * 3


async def test_special_tokens_have_a_text_unless_the_tokenizer_has_put_them_there() -> None:
    tokens = [0, *tokens_of("the"), 1, *tokens_of(" baton")]
    async with front(ANSWER) as worker:
        ids = await ask(worker, completion(tokens, echo=True, logprobs=0, max_tokens=0))
        text = await ask(worker, completion("the</s> baton", echo=True, logprobs=0, max_tokens=0))
    assert ids["choices"][0]["text"] == "<s>the</s> baton"
    check_offsets("<s>the</s> baton", ids["choices"][0]["logprobs"])
    assert text["choices"][0]["text"] == "the</s> baton"


async def test_a_character_that_begins_in_the_prompt_is_shown_once() -> None:
    tokens = tokens_of("so \u4e2d")
    assert len(tokens_of("\u4e2d")) == 3, "it is several tokens"
    async with front([*tokens[-1:], *ANSWER]) as worker:
        begun = await ask(worker, completion(tokens[:-1], echo=True, logprobs=0, max_tokens=2))
        cut = await ask(worker, completion(tokens[:-1], echo=True, logprobs=0, max_tokens=0))
    assert begun["choices"][0]["text"] == "so \u4e2d" + text_of(ANSWER[:1])
    assert cut["choices"][0]["text"] == "so \ufffd"
    assert begun["choices"][0]["logprobs"]["text_offset"][: len(tokens)] == [0, 1, 2, 3, 3, 3][: len(tokens)]


@pytest.mark.parametrize("params", [{"do_remote_decode": True}, GOOD], ids=["prefill", "decode"])
@pytest.mark.parametrize(
    "more",
    [
        {"echo": True},
        {"prompt_logprobs": 1},
        {"echo": True, "logprobs": 1, "max_tokens": 1},
        {"echo": True, "max_tokens": 0},
    ],
)
async def test_a_leg_of_a_hand_off_is_not_asked_about_its_prompt(more: dict[str, Any], params: dict[str, Any]) -> None:
    async with front(ANSWER) as worker:
        body = completion(PROMPT, kv_transfer_params=params, **more)
        answer = await worker.http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "kv_transfer_params"
    assert "one worker alone" in answer.json()["error"]["message"]


async def test_a_whole_answer_about_a_long_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lists are encoded while they grow; the answer is the same."""
    monkeypatch.setattr(json_list, "NUM_TOGETHER", 16)
    tokens = (tokens_of(PROMPT) * 40)[:150]
    async with front(ANSWER) as worker:
        body = await ask(worker, completion(tokens, echo=True, logprobs=2, prompt_logprobs=2, max_tokens=3))
    (choice,) = body["choices"]
    assert choice["text"] == text_of(tokens) + text_of(ANSWER[:3])
    check_offsets(choice["text"], choice["logprobs"])
    assert choice["logprobs"]["token_logprobs"][1:150] == [-float(i) for i in range(1, 150)]
    assert [next(iter(one)) for one in choice["prompt_logprobs"][1:]] == [str(token) for token in tokens[1:]]
