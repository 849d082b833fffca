"""Answers that break off and go on elsewhere, with a model: what P and D make of the tokens that a client has seen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.end_to_end.conftest import flags_with
from tests.kits.whole import reference
from tests.kits.whole.stack import Stack

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
    {
        "temperature": 1,
        "seed": 6,
        "structured_outputs": {"regex": '\\{"name": "[a-z]{1,12}", "laps": \\[[1-9][0-9]?(, [1-9][0-9]?){0,2}\\]\\}'},
    },
]


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def stack(tmp_path_factory: pytest.TempPathFactory, adapters: dict[str, Path]) -> AsyncIterator[Stack]:
    """P has one rank and D two; nobody asks a router."""
    folder = tmp_path_factory.mktemp("resume")
    flags = {"worker_flags": flags_with(adapters), "decode_flags": {"tp": 2}}
    async with Stack(folder, with_router=False, **flags) as running:
        yield running


async def whole(stack: Stack, worker: str, body: dict[str, Any], **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The choice and the usage without what depends on the cache, and ``kv_transfer_params``."""
    found = await stack.complete(url=stack.workers[worker].url, **{**body, **more})
    (choice,) = found["choices"]
    del found["usage"]["prompt_tokens_details"]
    return {**choice, "usage": found["usage"]}, found.get("kv_transfer_params")


@pytest.mark.parametrize(("ends", "wish"), [*(("decode-0", wish) for wish in WISHES), ("prefill-0", WISHES[-2])])
async def test_every_cut_gives_the_same_tokens(stack: Stack, ends: str, wish: dict[str, Any]) -> None:
    """On one worker; through P and D; and through a P that takes over its own blocks."""
    prompt = reference.prompt_of(37, seed=4)
    body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "return_token_ids": True, "logprobs": 1, **wish}
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
