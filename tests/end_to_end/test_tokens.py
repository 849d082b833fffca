"""The answer through P and D is, token for token, what the model gives undisturbed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kits.whole import reference
from tests.kits.whole.stack import Stack

LENGTHS = [1, 15, 16, 17, 100, 3000]
NUM_TOKENS = 24


async def hand_offs(stack: Stack) -> tuple[float, float]:
    return (
        await stack.metric("decode-0", "baton_worker_reads_total", outcome="done"),
        await stack.metric("decode-0", "baton_worker_local_prefills_total"),
    )


@pytest.mark.parametrize("length", LENGTHS)
async def test_greedy_equals_generate_alone(stack: Stack, length: int) -> None:
    reads, local = await hand_offs(stack)
    prompt = reference.prompt_of(length, seed=length)
    tokens = await stack.tokens(prompt, max_tokens=NUM_TOKENS)
    assert tokens == reference.greedy(tuple(prompt), NUM_TOKENS)
    assert await hand_offs(stack) == (reads + 1, local)


async def test_greedy_equals_generate_sixteen_at_once(stack: Stack) -> None:
    reads, local = await hand_offs(stack)
    prompts = [reference.prompt_of(LENGTHS[i % len(LENGTHS)], seed=1000 + i) for i in range(16)]
    got = await asyncio.gather(*(stack.tokens(p, max_tokens=NUM_TOKENS) for p in prompts))
    assert got == [reference.greedy(tuple(p), NUM_TOKENS) for p in prompts]
    assert await hand_offs(stack) == (reads + 16, local)


async def test_seeded_sampling_equals_one_worker_doing_both(stack: Stack, both: Stack) -> None:
    prompts = [reference.prompt_of(length, seed=2000 + length) for length in LENGTHS]
    options = {"max_tokens": NUM_TOKENS, "temperature": 1, "top_p": 0.95, "presence_penalty": 0.5}
    split = await asyncio.gather(*(stack.tokens(p, seed=7 + i, **options) for i, p in enumerate(prompts)))
    whole = [await both.tokens(p, seed=7 + i, **options) for i, p in enumerate(prompts)]
    assert split == whole
    assert split != [await both.tokens(p, seed=99, **options) for p in prompts]  # the seed matters


@pytest.mark.slow
async def test_a_worker_whose_cache_is_leased_decodes_what_it_prefilled(tmp_path: Path) -> None:
    """It takes its own blocks over. The only one that prefills is also the less busy one to decode; eight prompts of
    four blocks fill its cache.
    """
    async with Stack(tmp_path, prefill=0, decode=1, both=1, worker_flags={"num-blocks": 33}) as stack:
        prompts = [reference.prompt_of(64, seed=100 + number) for number in range(16)]
        got = await asyncio.gather(*(stack.tokens(prompt, max_tokens=NUM_TOKENS) for prompt in prompts))
        assert got == [reference.greedy(tuple(prompt), NUM_TOKENS) for prompt in prompts]
        assert await stack.metric("both-0", "baton_worker_hand_offs_total") >= len(prompts)
        assert await stack.metric("both-0", "baton_worker_take_overs_total") > 0
        await stack.until_idle()
