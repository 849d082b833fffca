"""A worker with role both may be P and D of one request: it takes over its own blocks, however full its cache is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.kits.whole import reference
from tests.kits.whole.stack import Stack

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

NUM_TOKENS = 24


async def test_a_worker_whose_cache_is_leased_decodes_what_it_prefilled(tmp_path: Path) -> None:
    """The only one that prefills is also the less busy one to decode; eight prompts of four blocks fill its cache."""
    async with Stack(tmp_path, prefill=0, decode=1, both=1, worker_flags={"num-blocks": 33}) as stack:
        prompts = [reference.prompt_of(64, seed=100 + number) for number in range(16)]
        got = await asyncio.gather(*(stack.tokens(prompt, max_tokens=NUM_TOKENS) for prompt in prompts))
        assert got == [reference.greedy(tuple(prompt), NUM_TOKENS) for prompt in prompts]
        assert await stack.metric("both-0", "baton_worker_hand_offs_total") >= len(prompts)
        assert await stack.metric("both-0", "baton_worker_take_overs_total") > 0
        await stack.until_idle()
