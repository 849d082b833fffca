"""Redis does not hear a P any more, so routers miss it; its blocks are there, and are read."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.kits.redis_proxy import RedisProxy
from tests.kits.whole import reference
from tests.kits.whole.stack import Stack, eventually

#: One sequence at a time on D, so that the second request is held.
FLAGS = {"dtype": "float32", "max-num-seqs": 1}
#: D is busy with so many for longer than it takes to miss P (3 s).
NUM_TOKENS, MANY_TOKENS = 20, 7500
#: Longer than P's patience with a silent Redis would have to last here.
SILENT_S = 120.0


@pytest.mark.slow
async def test_what_it_holds_is_not_prefilled_again(tmp_path: Path) -> None:
    door = tmp_path / "door.sock"
    late = {"role": "prefill", "redis-url": f"unix://{door}?db=0"}
    stack = Stack(tmp_path, prefill=0, named={"late": late}, worker_flags=FLAGS)

    def redis_path() -> str:
        return stack.redis.url.removeprefix("unix://").partition("?")[0]

    async with RedisProxy(redis_path, door) as proxy, stack:
        busy = asyncio.create_task(stack.tokens(reference.prompt_of(100, seed=1), max_tokens=MANY_TOKENS))
        await stack.until_state("decoding")
        prompt = reference.prompt_of(500, seed=2)
        held = asyncio.create_task(stack.tokens(prompt, max_tokens=NUM_TOKENS))
        await stack.until_state("held")
        proxy.delay_s = SILENT_S

        async def is_missing() -> bool:
            return await stack.metric("router", "baton_router_worker_up", role="prefill") == 0

        await eventually(is_missing)
        assert not busy.done() and not held.done(), "D has had room before P was missed"
        busy.cancel()
        assert await held == reference.greedy(tuple(prompt), NUM_TOKENS)
        assert await stack.metric("late", "baton_worker_prefill_tokens_total") == 600
        assert await stack.metric("decode-0", "baton_worker_local_prefills_total") == 0
        assert await stack.metric("decode-0", "baton_worker_reads_total", outcome="done") == 2
        proxy.delay_s = 0.0
        with contextlib.suppress(asyncio.CancelledError):
            await busy
