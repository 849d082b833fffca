"""Answers about prompts, through P and D and from one worker: the logprobs are those of the model."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack
from tests.kits.whole.streams import chunks_of

LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def logprobs_of(tokens: list[int]) -> torch.Tensor:
    """Of the token after each of ``tokens``, by transformers."""
    with torch.inference_mode():
        logits: torch.Tensor = reference.model()(torch.tensor([tokens])).logits[0]
    return logits.log_softmax(-1)


def check_lists(logprobs: dict[str, Any], tokens: list[int], num_top: int) -> None:
    """The lists of a completion that begins with its prompt."""
    expected = logprobs_of(tokens)
    assert {len(logprobs[name]) for name in LISTS} == {len(tokens)}
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    for index in range(1, len(tokens)):
        own, at = logprobs["token_logprobs"][index], expected[index - 1]
        assert own == pytest.approx(float(at[tokens[index]]), abs=1e-3)
        top = logprobs["top_logprobs"][index]
        best = at.topk(num_top).values.tolist()
        assert sorted(top.values(), reverse=True)[: len(best)] == pytest.approx(best, abs=1e-3)
        assert len(top) <= num_top + 1


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("length", [1, 300])
async def test_what_lm_eval_asks_for(stack: Stack, both: Stack, length: int, max_tokens: int) -> None:
    prompt = reference.prompt_of(length, seed=length)
    for one in (stack, both):
        body = await one.complete(prompt, echo=True, logprobs=1, max_tokens=max_tokens, seed=1234)
        (choice,) = body["choices"]
        tokens = prompt + reference.greedy(tuple(prompt), max_tokens) if max_tokens else prompt
        check_lists(choice["logprobs"], tokens, 1)
        assert choice["finish_reason"] == "length"
        assert body["usage"]["prompt_tokens"] == length and body["usage"]["completion_tokens"] == max_tokens
    await stack.until_idle()


async def test_a_batch_of_lm_eval(stack: Stack) -> None:
    prompts = [reference.prompt_of(length, seed=length) for length in (20, 7, 33)]
    body = await stack.complete(prompts, echo=True, logprobs=1, max_tokens=1)  # type: ignore[arg-type]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    for prompt, choice in zip(prompts, body["choices"], strict=True):
        check_lists(choice["logprobs"], prompt + reference.greedy(tuple(prompt), 1), 1)
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (60, 3)


async def test_p_does_it_alone(stack: Stack) -> None:
    def at(worker: str) -> Any:
        return stack.metric(worker, "baton_worker_requests_total")

    before = [await at("prefill-0"), await at("decode-0")]
    body = await stack.complete(reference.prompt_of(40, seed=1), echo=True, logprobs=2, max_tokens=8, ignore_eos=True)
    assert [await at("prefill-0"), await at("decode-0")] == [before[0] + 1, before[1]]
    assert body["usage"]["completion_tokens"] == 8
    tokens = reference.prompt_of(40, seed=1)
    check_lists(body["choices"][0]["logprobs"], tokens + reference.greedy(tuple(tokens), 8), 2)
    await stack.until_idle()


async def test_what_is_in_the_cache_changes_nothing(stack: Stack) -> None:
    prompt = reference.prompt_of(200, seed=2)
    asked = {"echo": True, "logprobs": 3, "prompt_logprobs": 2, "max_tokens": 0}
    first = await stack.complete(prompt, **asked)
    hit = await stack.complete(prompt, max_tokens=2)
    assert hit["usage"]["prompt_tokens_details"]["cached_tokens"] >= 192, "others use the blocks that it leaves"
    again = await stack.complete(prompt, **asked)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["choices"] == first["choices"]
    only = await stack.complete(prompt, echo=True, max_tokens=0)
    assert only["usage"]["prompt_tokens_details"]["cached_tokens"] >= 192, "no logits are needed"
    assert only["choices"][0]["text"] == first["choices"][0]["text"]


async def test_an_echo_of_a_text(stack: Stack, both: Stack) -> None:
    prompt = "A relay team wins by the hand-over. The runner who comes in holds the baton: caf\u00e9, \u4e2d\u6587."
    for one in (stack, both):
        (choice,) = (await one.complete(prompt, echo=True, logprobs=0, max_tokens=12, ignore_eos=True))["choices"]
        assert choice["text"].startswith(prompt)
        ids = reference.tokenizer()(prompt)["input_ids"]
        offsets = choice["logprobs"]["text_offset"]
        assert offsets[len(ids)] == len(prompt)
        assert (ids[0], offsets[:2]) == (0, [0, 0]), "what the tokenizer has put before the text is not shown"
        for token, (start, end) in list(zip(ids, itertools.pairwise(offsets), strict=False))[1:]:
            alone = reference.tokenizer().decode([token])
            assert choice["text"][start:end] == alone or "\ufffd" in alone, "a part of a character has no place"


async def test_a_streamed_echo_is_the_whole_one(stack: Stack, both: Stack) -> None:
    prompt = reference.prompt_of(600, seed=3)
    asked: dict[str, Any] = {"echo": True, "logprobs": 20, "max_tokens": 6, "ignore_eos": True}
    (whole,) = (await stack.complete(prompt, **asked))["choices"]
    for one in (stack, both):
        answer = await one.post("/v1/completions", prompt=prompt, temperature=0, stream=True, **asked)
        choices = [choice for chunk in chunks_of(answer.text) for choice in chunk["choices"]]
        assert len(choices) > 1 + 6, "the prompt comes in several parts"
        assert choices[0]["logprobs"]["token_logprobs"][0] is None
        assert "".join(choice["text"] for choice in choices) == whole["text"]
        for name in LISTS:
            values = [value for choice in choices if choice["logprobs"] for value in choice["logprobs"][name]]
            assert values == whole["logprobs"][name]
        assert choices[-1]["finish_reason"] == "length"


async def test_prompt_logprobs(stack: Stack, both: Stack) -> None:
    prompt = reference.prompt_of(50, seed=5)
    expected = logprobs_of(prompt)
    for one in (stack, both):
        (choice,) = (await one.complete(prompt, prompt_logprobs=3, max_tokens=1))["choices"]
        assert choice["logprobs"] is None and choice["prompt_logprobs"][0] is None
        for index, entry in enumerate(choice["prompt_logprobs"][1:], 1):
            at = expected[index - 1]
            own = entry[str(prompt[index])]
            assert own["logprob"] == pytest.approx(float(at[prompt[index]]), abs=1e-3)
            assert next(iter(entry)) == str(prompt[index])
            assert own["rank"] == int((at >= at[prompt[index]]).sum())
            assert own["decoded_token"] == reference.tokenizer().decode([prompt[index]])
            best = [token for token in entry if entry[token]["rank"] <= 3]
            assert {int(token) for token in best} == set(at.topk(3).indices.tolist())


async def test_prompt_logprobs_of_a_chat(stack: Stack) -> None:
    messages = [{"role": "user", "content": "Who holds the baton?"}]
    answer = await stack.post("/v1/chat/completions", messages=messages, max_tokens=2, prompt_logprobs=1)
    entries = answer.json()["prompt_logprobs"]
    assert len(entries) == answer.json()["usage"]["prompt_tokens"] and entries[0] is None
    tokens = [0, *(int(next(iter(entry))) for entry in entries[1:])]
    text = reference.tokenizer().apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert tokens == reference.tokenizer()(text, add_special_tokens=False)["input_ids"]
    expected = logprobs_of(tokens)
    for index, entry in enumerate(entries[1:], 1):
        own = next(iter(entry.values()))["logprob"]
        assert own == pytest.approx(float(expected[index - 1][tokens[index]]), abs=1e-3)


@pytest.mark.slow
async def test_a_p_is_killed_while_it_streams_an_echo(tmp_path: Path) -> None:
    body = {"model": MODEL, "prompt": reference.prompt_of(500, seed=6), "temperature": 0, "ignore_eos": True}
    body |= {"echo": True, "logprobs": 2, "max_tokens": 300, "stream": True}
    async with Stack(tmp_path, prefill=2, worker_flags={"dtype": "float32"}) as stack:

        async def choices(kill_after: int) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            async with stack.http.stream("POST", f"{stack.router.url}/v1/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    found += json.loads(line[6:])["choices"]
                    if len(found) == kill_after:
                        busy = [name for name in ("prefill-0", "prefill-1") if (await stack.state(name))["pinned"]]
                        assert len(busy) == 1
                        stack.cluster.signal(busy[0], signal.SIGKILL)
            return found

        quiet, disturbed = await choices(0), await choices(30)
        for name in ("tokens", "text_offset"):
            said = [
                [value for choice in one if choice["logprobs"] for value in choice["logprobs"][name]]
                for one in (quiet, disturbed)
            ]
            assert said[0] == said[1] and len(said[0]) == 800
        texts = ["".join(choice["text"] for choice in one) for one in (quiet, disturbed)]
        assert texts[0] == texts[1]
        assert disturbed[-1]["finish_reason"] == "length"
