"""Streams that break off and go on elsewhere, with a model: what P and D make of the tokens that a client has seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.end_to_end.conftest import flags_with
from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.slow

NUM_TOKENS = 20
WISHES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1, "seed": 11, "top_p": 0.95},
    {
        "temperature": 0.8,
        "seed": 5,
        "frequency_penalty": 1.5,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.2,
        "min_tokens": 9,
    },
    {"temperature": 1, "seed": 12, "model": "tuned"},
    {
        "temperature": 1,
        "seed": 8,
        "bad_words": ["the", "e", "a b"],
        "stop_token_ids": [7],
        "include_stop_str_in_output": True,
    },
]


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def stack(tmp_path_factory: pytest.TempPathFactory, adapters: dict[str, Path]) -> AsyncIterator[Stack]:
    """P has one rank and D two; nobody asks a router."""
    folder = tmp_path_factory.mktemp("resume")
    flags = {"worker_flags": flags_with(adapters), "decode_flags": {"tp": 2}}
    async with Stack(folder, with_router=False, **flags) as running:
        yield running


async def stream(stack: Stack, worker: str, body: dict[str, Any]) -> tuple[str, list[int], list[dict[str, Any]]]:
    """The joined text, the token ids told before the end, all chunks."""
    url = f"{stack.workers[worker].url}/v1/completions"
    wanted = {"stream": True, "stream_options": {"include_usage": True}}
    answer = await stack.http.post(url, json={**body, **wanted}, headers={"x-baton-token-ids": "1"})
    assert answer.status_code == 200, answer.text
    lines = [line for line in answer.text.split("\n") if line]
    assert lines.count(":end") == 1 and lines[-1] == "data: [DONE]"
    chunks = [json.loads(line[6:]) for line in lines[:-1] if line.startswith("data: ")]
    told = [line[1:] for line in lines if line.startswith(":") and line != ":end"]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    return text, [int(one) for line in told for one in line.split(",")], chunks


async def whole(stack: Stack, worker: str, body: dict[str, Any], **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The choice and the usage without what depends on the cache, and ``kv_transfer_params``."""
    answer = await stack.http.post(f"{stack.workers[worker].url}/v1/completions", json={**body, **more})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    (choice,) = found["choices"]
    del found["usage"]["prompt_tokens_details"]
    return {**choice, "usage": found["usage"]}, found.get("kv_transfer_params")


@pytest.mark.parametrize(("ends", "wish"), [*(("decode-0", wish) for wish in WISHES), ("prefill-0", WISHES[-1])])
async def test_every_cut_gives_the_same_tokens(stack: Stack, ends: str, wish: dict[str, Any]) -> None:
    """On one worker; through P and D; and through a P that takes over its own blocks."""
    prompt = reference.prompt_of(37, seed=4)
    body = {"model": MODEL, "prompt": prompt, "max_tokens": NUM_TOKENS, "return_token_ids": True, "logprobs": 1, **wish}
    alone, _ = await whole(stack, "decode-0", body)
    tokens, offsets = alone["token_ids"], alone["logprobs"]["text_offset"]
    assert len(tokens) > NUM_TOKENS // 2
    _, params = await whole(stack, "prefill-0", body, kv_transfer_params={"do_remote_decode": True}, max_tokens=1)
    split, _ = await whole(stack, ends, body, kv_transfer_params=params)
    assert split["token_ids"] == tokens
    for cut in range(1, len(tokens) - 1):
        resume = {"token_ids": tokens[:cut], "created": 1_700_000_000, "adapter": params["adapter"]}
        plain, _ = await whole(stack, "decode-0", body, kv_transfer_params={"resume": resume})
        asked = {"do_remote_decode": True, "resume": resume}
        first, params = await whole(stack, "prefill-0", body, kv_transfer_params=asked, max_tokens=1)
        assert params["remote_num_tokens"] == len(prompt) + cut and first["token_ids"] == [tokens[cut]]
        rest, _ = await whole(stack, ends, body, kv_transfer_params=params)
        for got in (plain, rest):
            assert got["token_ids"] == tokens[cut:], cut
            assert got["logprobs"]["text_offset"] == offsets[cut:]
            assert got["logprobs"]["token_logprobs"] == pytest.approx(
                alone["logprobs"]["token_logprobs"][cut:], abs=1e-4
            )
            assert (got["usage"], got["finish_reason"]) == (alone["usage"], alone["finish_reason"])
    await stack.until_idle()


async def test_a_stream_goes_on_where_it_stopped(stack: Stack) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": "The baton", "max_tokens": 40, "temperature": 1, "seed": 3}
    text, ids, chunks = await stream(stack, "decode-0", body)
    for cut in range(1, len(ids), 5):
        params = {"resume": {"token_ids": ids[:cut], "created": chunks[0]["created"]}}
        rest, more, again = await stream(stack, "prefill-0", {**body, "kv_transfer_params": params})
        assert text.endswith(rest) and ids[:cut] + more == ids
        assert again[-1]["usage"]["completion_tokens"] == chunks[-1]["usage"]["completion_tokens"]
        assert {chunk["created"] for chunk in again} == {chunks[0]["created"]}
