"""A whole Baton whose workers compute on a GPU, and whose blocks are read from its memory."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.kits.whole import reference
from tests.kits.whole.stack import Stack

pytestmark = pytest.mark.gpu

NUM_TOKENS = 40
LENGTHS = [1, 15, 16, 17, 100, 700]
#: Several workers share the GPU.
ON_GPU = {"device": "cuda:0", "dtype": "float32", "kv-cache-bytes": 2**28}


def prompts_of(seed: int) -> list[list[int]]:
    return [reference.prompt_of(length, seed=seed + length) for length in LENGTHS]


@pytest.mark.parametrize("d_device", ["cuda:0", "cpu"])
async def test_hand_offs_give_the_tokens_of_the_undivided_model(d_device: str, tmp_path: Path) -> None:
    """D decodes on the GPU, or on a CPU with blocks from the GPU."""
    async with Stack(tmp_path, worker_flags=ON_GPU, decode_flags={"device": d_device}) as stack:
        prompts = prompts_of(seed=10)
        got = [await stack.tokens(prompt, max_tokens=NUM_TOKENS) for prompt in prompts[:3]]
        got += await asyncio.gather(*(stack.tokens(prompt, max_tokens=NUM_TOKENS) for prompt in prompts[3:]))
        assert got == [reference.greedy(tuple(prompt), NUM_TOKENS) for prompt in prompts]
        assert await stack.metric("decode-0", "baton_worker_reads_total", outcome="done") == len(prompts)
        assert await stack.metric("decode-0", "baton_worker_local_prefills_total") == 0
        await stack.until_idle()


async def test_a_d_that_is_killed_costs_no_prefill_and_no_token(tmp_path: Path) -> None:
    """The other D, which computes on the same GPU, reads the blocks that P still has, and begins anew."""
    async with Stack(tmp_path, decode=2, worker_flags=ON_GPU) as stack:
        prompts = [reference.prompt_of(60, seed=seed) for seed in range(8)]
        asked = [asyncio.create_task(stack.tokens(prompt, max_tokens=300)) for prompt in prompts]
        async with asyncio.timeout(60):
            while not await stack.metric("decode-0", "baton_worker_requests_running"):  # noqa: ASYNC110 (a process)
                await asyncio.sleep(0.001)
        os.kill(stack.workers.pop("decode-0").pid, signal.SIGKILL)
        got = await asyncio.gather(*asked)
        assert await stack.metric("router", "baton_router_retries_total", leg="decode") > 0, "all was over before"
        assert await stack.metric("prefill-0", "baton_worker_prefill_tokens_total") == 60 * len(prompts)
        assert got == [reference.greedy(tuple(prompt), 300) for prompt in prompts]
