"""P gives a lease's blocks away before D has read them: the fence sees it, and only the fence."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kits.whole import reference
from tests.kits.whole.stack import Stack

NUM_TOKENS = 16
#: P's cache is small, so that a few other prompts overwrite all of it; the lease is short and nobody renews it.
P_FLAGS = {"num-blocks": 40, "lease-duration-ms": 200, "max-model-len": 600}


def small_stack(folder: Path, **decode_flags: Any) -> Stack:
    return Stack(
        folder,
        worker_flags={"dtype": "float32"},
        prefill_flags=P_FLAGS,
        decode_flags={"num-blocks": 400, **decode_flags},
        with_router=False,
    )


async def answer_after_overwrite(stack: Stack, prompt: list[int]) -> list[int]:
    """Prefill on P, let the lease expire, fill P's cache with other prompts, then let D read."""
    params = await stack.prefill_at("prefill-0", prompt)
    await stack.until_idle("prefill-0")
    await asyncio.gather(*(stack.prefill_at("prefill-0", reference.prompt_of(560, seed=s)) for s in range(4)))
    await stack.until_idle("prefill-0")
    return await stack.decode_at("decode-0", prompt, params, NUM_TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize("length", [100, 250])
async def test_overwritten_blocks_are_never_served(tmp_path: Path, length: int) -> None:
    async with small_stack(tmp_path) as stack:
        prompt = reference.prompt_of(length, seed=length)
        tokens = await answer_after_overwrite(stack, prompt)
        assert tokens == reference.greedy(tuple(prompt), NUM_TOKENS)
        assert await stack.metric("decode-0", "baton_worker_fence_rejections_total") == 1
        assert await stack.metric("decode-0", "baton_worker_local_prefills_total") == 1
        await stack.until_idle()


@pytest.mark.slow
async def test_it_is_the_fence_that_prevents_it(tmp_path: Path) -> None:
    """The same with the fence off gives another prompt's tokens: the test above can fail."""
    async with small_stack(tmp_path, **{"unsafe-disable-fence": True}) as stack:
        prompt = reference.prompt_of(250, seed=250)
        tokens = await answer_after_overwrite(stack, prompt)
        assert tokens != reference.greedy(tuple(prompt), NUM_TOKENS)
        assert await stack.metric("decode-0", "baton_worker_fence_rejections_total") == 0


@pytest.mark.slow
async def test_an_expired_lease_whose_blocks_still_hold_the_data_is_still_good(tmp_path: Path) -> None:
    async with small_stack(tmp_path) as stack:
        prompt = reference.prompt_of(250, seed=251)
        params = await stack.prefill_at("prefill-0", prompt)
        await stack.until_idle("prefill-0")
        assert await stack.decode_at("decode-0", prompt, params, NUM_TOKENS) == reference.greedy(
            tuple(prompt), NUM_TOKENS
        )
        assert await stack.metric("decode-0", "baton_worker_fence_rejections_total") == 0
        assert await stack.metric("decode-0", "baton_worker_local_prefills_total") == 0
