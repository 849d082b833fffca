"""Several answers to a request, with a model: each is what it would be alone, and P computes a prompt once."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack
from tests.kits.whole.streams import NUM_BEFORE, Counts, chunks_of, resumed

NUM_TOKENS = 12
SEED = 40
WISH: dict[str, Any] = {
    "max_tokens": NUM_TOKENS,
    "temperature": 1.5,
    "ignore_eos": True,
    "return_token_ids": True,
    "logprobs": 2,
}
SCHEMA = {
    "type": "object",
    "properties": {"leg": {"enum": [1, 2, 3]}},
    "required": ["leg"],
    "additionalProperties": False,
}


def about(choice: dict[str, Any]) -> tuple[list[int], str, str]:
    return choice["token_ids"], choice["text"], choice["finish_reason"]


async def leases(stack: Stack) -> list[float]:
    """Of P: how many were granted, and how many were read."""
    read = await stack.metric("prefill-0", "baton_worker_lease_outcomes_total", outcome="done")
    return [await stack.metric("prefill-0", "baton_worker_leases_granted_total"), read]


async def alone(stack: Stack, prompt: list[int] | str, **more: Any) -> dict[str, Any]:
    (choice,) = (await stack.complete(prompt, **{**WISH, **more}))["choices"]
    return dict(choice)


async def stream(stack: Stack, path: str, body: dict[str, Any], counts: Counts | None = None) -> list[dict[str, Any]]:
    """All chunks, of which the last one has the usage. Those of each choice are counted as they come."""
    wanted = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}}
    found: list[str] = []
    with ExitStack() as counted:
        of = [counted.enter_context(one) for one in counts.of] if counts else []
        async with stack.http.stream("POST", f"{stack.router.url}{path}", json={**body, **wanted}) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                found.append(line)
                for chunk in [json.loads(line[6:])] if of and line.startswith("data: {") else ():
                    for choice in chunk["choices"]:
                        of[choice["index"]].one_more()
    return chunks_of("\n".join(found))


async def test_each_choice_is_what_its_seed_gives_alone(stack: Stack, both: Stack) -> None:
    prompt = reference.prompt_of(53, seed=21)
    expected = [about(await alone(both, prompt, seed=SEED + index)) for index in range(4)]
    before = await leases(stack)
    for one in (stack, both):
        answer = await one.complete(prompt, n=4, seed=SEED, **WISH)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert [about(choice) for choice in answer["choices"]] == expected
        assert len({tuple(choice["token_ids"]) for choice in answer["choices"]}) == 4
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (53, 4 * NUM_TOKENS)
    await stack.until_idle()
    assert await leases(stack) == [num + 1 for num in before], "one was granted, and was over when all had read"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_of_several_is_the_whole(stack: Stack, path: str) -> None:
    asked = {"prompt": "The baton"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    body = {"model": MODEL, **asked, "n": 3, "seed": 5, "temperature": 1, "max_tokens": 20}
    answer = (await stack.post(path, **body)).json()
    *chunks, usage = await stream(stack, path, body)
    said, ends = ["", "", ""], ["", "", ""]
    for chunk in chunks:
        assert chunk["usage"] is None
        for choice in chunk["choices"]:
            index = choice["index"]
            said[index] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            ends[index] = choice["finish_reason"] or ends[index]
    whole = [choice.get("text") or choice.get("message", {}).get("content") for choice in answer["choices"]]
    assert said == whole and ends == [choice["finish_reason"] for choice in answer["choices"]]
    assert usage["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
    assert usage["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    await stack.until_idle()


async def test_a_list_of_prompts_is_as_many_requests(stack: Stack, both: Stack) -> None:
    prompts = [reference.prompt_of(length, seed=length) for length in (3, 40, 17)]
    expected = [about(await alone(both, prompt, temperature=0)) for prompt in prompts]
    answer = await stack.complete(prompts, **{**WISH, "temperature": 0})  # type: ignore[arg-type]
    assert [about(choice) for choice in answer["choices"]] == expected
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == prompts
    assert answer["usage"]["prompt_tokens"] == 60
    texts = await stack.complete(["The baton", "A runner"], max_tokens=5)  # type: ignore[arg-type]
    assert [choice["text"] for choice in texts["choices"]] == [
        (await stack.complete(text, max_tokens=5))["choices"][0]["text"] for text in ("The baton", "A runner")
    ]
    await stack.until_idle()


async def test_the_best_of_several(stack: Stack, both: Stack) -> None:
    prompt = reference.prompt_of(20, seed=5)
    every = [await alone(both, prompt, seed=SEED + index) for index in range(4)]
    means = [sum(one["logprobs"]["token_logprobs"]) for one in every]
    answer = await stack.complete(prompt, best_of=4, n=1, seed=SEED, **{**WISH, "logprobs": None})
    (best,) = answer["choices"]
    assert about(best) == about(every[means.index(max(means))]) and best["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 4 * NUM_TOKENS


async def test_each_choice_follows_the_schema(stack: Stack) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "leg", "schema": SCHEMA}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "response_format": form}
    answer = await stack.post("/v1/chat/completions", **body, n=3, temperature=1, max_tokens=60)
    legs = [json.loads(choice["message"]["content"])["leg"] for choice in answer.json()["choices"]]
    assert len(legs) == 3 and set(legs) <= {1, 2, 3}
    await stack.until_idle()


@pytest.mark.slow
async def test_a_d_that_dies_costs_its_choices_their_place_and_no_token(tmp_path: Path) -> None:
    """Three choices on two decode workers, one of which is killed while they stream."""
    body = {"prompt": "The baton", "n": 3, "seed": 9, "temperature": 1, "max_tokens": 200, "ignore_eos": True}
    flags = {"dtype": "float32"}
    async with Stack(tmp_path, decode=2, worker_flags=flags, decode_flags={"max-num-seqs": 2}) as stack:
        expected = (await stack.complete(**body))["choices"]  # type: ignore[arg-type]
        counts, wanted = Counts(3), {**body, "return_token_ids": True}
        task = asyncio.create_task(stream(stack, "/v1/completions", wanted, counts))
        await counts.more(NUM_BEFORE)  # of a choice that has no token yet, the stream would only begin elsewhere
        busy = {worker["id"] for worker in await stack.known_workers() if worker["in_flight"]}
        dies, stays = sorted(("decode-0", "decode-1"), key=lambda name: stack.workers[name].worker_id not in busy)
        stack.cluster.signal(dies, signal.SIGKILL)
        chunks = await task
        assert await resumed(stack) > 0
        said = ["", "", ""]
        for chunk in chunks:
            for choice in chunk["choices"]:
                said[choice["index"]] += choice["text"]
        assert said == [choice["text"] for choice in expected]
        await stack.until_gone()
        await stack.until_idle("prefill-0", stays)
