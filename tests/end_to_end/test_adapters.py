"""Adapters through P and D: peft's tokens, blocks of their own, and no D that would go on with another one."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.conftest import flags_with
from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack

if TYPE_CHECKING:
    from openai import AsyncOpenAI

NUM_TOKENS = 24
MODELS = [MODEL, "tuned", "other"]


def expected(prompt: list[int], adapter: Path | None) -> list[int]:
    return reference.greedy(tuple(prompt), NUM_TOKENS, adapter=adapter)


async def test_requests_of_all_models_at_once_are_pefts(stack: Stack, adapters: dict[str, Path]) -> None:
    reads = await stack.metric("decode-0", "baton_worker_reads_total", outcome="done")
    asked = [(MODELS[i % 3], reference.prompt_of([1, 16, 17, 100, 700][i % 5], seed=3000 + i)) for i in range(15)]
    got = await asyncio.gather(*(stack.tokens(p, model=model, max_tokens=NUM_TOKENS) for model, p in asked))
    assert got == [expected(prompt, adapters.get(model)) for model, prompt in asked]
    assert await stack.metric("decode-0", "baton_worker_reads_total", outcome="done") == reads + len(asked)
    await stack.until_idle()


async def test_one_prompt_is_computed_once_for_each_model(stack: Stack, adapters: dict[str, Path]) -> None:
    """Also on D, which has the blocks of all of them at the end."""
    prompt = reference.prompt_of(100, seed=3100)
    for num_cached in (0, 96):
        for model in MODELS:
            answer = await stack.complete(
                prompt, model=model, max_tokens=NUM_TOKENS, return_token_ids=True, ignore_eos=True
            )
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == num_cached
            assert answer["choices"][0]["token_ids"] == expected(prompt, adapters.get(model))


@pytest.mark.parametrize(("p_has", "d_has"), [("tuned", "other"), (MODEL, "tuned"), ("tuned", MODEL)])
async def test_d_does_not_read_blocks_of_another_adapter(stack: Stack, p_has: str, d_has: str) -> None:
    prompt = reference.prompt_of(50, seed=3200)
    reads = await stack.metric("decode-0", "baton_worker_reads_total")
    params = await stack.prefill_at("prefill-0", prompt, model=p_has)
    assert bool(params["adapter"]) == (p_has != MODEL)
    body = {"model": d_has, "prompt": prompt, "max_tokens": 8, "kv_transfer_params": params}
    answer = await stack.http.post(f"{stack.workers['decode-0'].url}/v1/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (502, "other_adapter")
    assert "P's blocks were computed by" in error["message"]
    assert await stack.metric("decode-0", "baton_worker_reads_total") == reads
    tokens = await stack.decode_at("decode-0", prompt, params, 8, model=p_has)
    assert len(tokens) == 8, "the lease still serves a D that has the adapter"
    await stack.until_idle()


@pytest.mark.slow
async def test_sampling_and_structured_output_equal_one_worker_doing_both(stack: Stack, both: Stack) -> None:
    prompt = reference.prompt_of(40, seed=3300)
    options = {"model": "tuned", "max_tokens": 60, "temperature": 1, "seed": 9, "return_token_ids": True}
    form = {"structured_outputs": {"regex": "(yes|no), [0-9]{4}"}}
    for more in ({"top_p": 0.9, "frequency_penalty": 0.4, "logprobs": 2}, form):
        split, whole = [(await one.complete(prompt, **options, **more))["choices"][0] for one in (stack, both)]
        assert split["token_ids"] == whole["token_ids"] and split["text"] == whole["text"]
    assert re.fullmatch("(yes|no), [0-9]{4}", split["text"])


async def test_several_answers_of_an_adapter_are_what_their_seeds_give_alone(stack: Stack) -> None:
    prompt = reference.prompt_of(40, seed=3400)
    wish = {"model": "tuned", "max_tokens": 12, "temperature": 1.5, "ignore_eos": True, "return_token_ids": True}
    several = (await stack.complete(prompt, **wish, n=3, seed=9))["choices"]
    alone = [(await stack.complete(prompt, **wish, seed=9 + i))["choices"][0]["token_ids"] for i in range(3)]
    assert [choice["token_ids"] for choice in several] == alone
    assert len({tuple(tokens) for tokens in alone}) == 3
    await stack.until_idle()


async def test_forced_calls_of_tools_equal_one_worker_doing_both(stack: Stack, both: Stack) -> None:
    parameters = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    tool = {
        "type": "function",
        "function": {"name": "lap", "parameters": {**parameters, "additionalProperties": False}},
    }
    body = {"messages": [{"role": "user", "content": "Run."}], "tools": [tool], "tool_choice": "required", "seed": 4}
    asked = [await one.post("/v1/chat/completions", model="tuned", **body) for one in (stack, both)]
    answers = [answer.json()["choices"][0] for answer in asked]
    calls = [[call["function"] for call in answer["message"]["tool_calls"]] for answer in answers]
    assert calls[0] == calls[1] and {call["name"] for call in calls[0]} == {"lap"}
    assert {answer["finish_reason"] for answer in answers} == {"tool_calls"}


async def test_the_openai_client_asks_an_adapter_as_a_model(client: AsyncOpenAI) -> None:
    asked = {"messages": [{"role": "user", "content": "What is a lease?"}], "max_tokens": 12, "temperature": 0}
    whole = await client.chat.completions.create(model="tuned", **asked)  # type: ignore[call-overload]
    stream = await client.chat.completions.create(model="tuned", stream=True, **asked)  # type: ignore[call-overload]
    chunks = [chunk async for chunk in stream]
    own = await client.chat.completions.create(model=MODEL, **asked)  # type: ignore[call-overload]
    card = await client.models.retrieve("tuned")
    text = whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert {chunk.model for chunk in chunks} == {whole.model, card.id} == {"tuned"}
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}
    assert own.system_fingerprint != whole.system_fingerprint and own.choices[0].message.content != text


async def test_tokens_of_an_adapter_are_the_models(stack: Stack) -> None:
    assert len({(await stack.post("/tokenize", model=model, prompt="The baton")).text for model in MODELS}) == 1


@pytest.mark.slow
async def test_a_d_that_is_started_again_with_another_adapter_is_not_paired(
    tmp_path: Path, adapters: dict[str, Path]
) -> None:
    """As in the middle of a replacement: the model itself is served all the time."""
    prompt = reference.prompt_of(60, seed=3500)
    asked = {"model": "tuned", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    async with Stack(tmp_path, worker_flags=flags_with(adapters)) as stack:
        before = await stack.tokens(prompt, model="tuned", max_tokens=8)
        swapped = flags_with({"tuned": adapters["other"]})
        await stack.start_worker("decode-1", {"role": "decode", **swapped})
        await stack.routable(3)
        await stack.stop_worker("decode-0")
        await stack.routable(2)
        refused = await stack.http.post(f"{stack.router.url}/v1/completions", json=asked)
        assert (refused.status_code, "another adapter" in refused.json()["error"]["message"]) == (503, True)
        assert len(await stack.tokens(prompt, max_tokens=8)) == 8
        await stack.start_worker("decode-2", {"role": "decode"})
        await stack.routable(3)
        assert await stack.tokens(prompt, model="tuned", max_tokens=8) == before
        assert await stack.metric("decode-1", "baton_worker_reads_total", outcome="done") == 1, "the model's own"
