"""P stops answering with its sockets open: the read neither ends nor fails, until D gives it up.

Over TCP a read needs P's process, so a rank that stands still (SIGSTOP) is such a P. Its main process goes on: the
handshake is answered, the lease is kept, health checks are fine.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from baton_serve.baton.cluster.process import stopped
from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack

pytestmark = pytest.mark.slow

READ_TIMEOUT_S = 1.0
NUM_TOKENS = 12
LENGTH = 100
NUM_BLOCKS = 64


def over_tcp(folder: Path, *, prefill: int, with_router: bool, **decode_flags: Any) -> Stack:
    return Stack(
        folder,
        prefill=prefill,
        worker_flags={"dtype": "float32", "num-blocks": NUM_BLOCKS},
        decode_flags={"read-timeout-s": READ_TIMEOUT_S, "tp": 2, **decode_flags},
        worker_environ={"UCX_TLS": "tcp,self"},
        with_router=with_router,
    )


async def refused(stack: Stack, prompt: list[int], params: dict[str, Any]) -> dict[str, Any]:
    """D's error for a request that has to fail."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "kv_transfer_params": params}
    answer = await stack.http.post(f"{stack.workers['decode-0'].url}/v1/completions", json=body)
    assert answer.status_code == 502, answer.text
    error = answer.json()["error"]
    assert error["code"] == "kv_read_failed"
    assert isinstance(error, dict)
    return error


async def test_a_read_that_hangs_is_given_up_and_its_blocks_stay_in_quarantine(tmp_path: Path) -> None:
    async with over_tcp(tmp_path, prefill=1, with_router=False) as stack:
        prompts = [reference.prompt_of(LENGTH, seed=seed) for seed in range(3)]
        # The two have met before, so that it is the read that hangs and not the handshake.
        params = [await stack.prefill_at("prefill-0", prompt) for prompt in prompts]
        first = await stack.decode_at("decode-0", prompts[0], params[0], NUM_TOKENS)
        assert first == reference.greedy(tuple(prompts[0]), NUM_TOKENS)
        with stopped(*stack.ranks("prefill-0")) as go_on:
            error = await refused(stack, prompts[1], params[1])
            assert "read_timeout" in error["message"]
            state = await stack.state("decode-0")
            assert state["pinned"] == -(-LENGTH // 16), "NIXL may still write to them"
            assert await stack.metric("decode-0", "baton_worker_requests_running") == 0
            assert await stack.metric("decode-0", "baton_worker_reads_timed_out_total") == 1
            # Nobody else's blocks are risked on this P, nor his time.
            error = await refused(stack, prompts[2], params[2])
            assert "stuck" in error["message"]
            assert (await stack.state("decode-0"))["pinned"] == -(-LENGTH // 16)
            # Others are served meanwhile.
            other = reference.prompt_of(50, seed=9)
            url = stack.workers["decode-0"].url
            assert await stack.tokens(other, url=url, max_tokens=8) == reference.greedy(tuple(other), 8)
            go_on()
            await stack.until_idle("decode-0")
            # P is itself again: its blocks are read as if nothing had been.
            tokens = await stack.decode_at("decode-0", prompts[2], params[2], NUM_TOKENS)
            assert tokens == reference.greedy(tuple(prompts[2]), NUM_TOKENS)


async def test_the_router_prefills_elsewhere(tmp_path: Path) -> None:
    """The client of a request whose P hangs gets its tokens, computed by another P."""
    async with over_tcp(tmp_path, prefill=2, with_router=True, **{"max-num-seqs": 1}) as stack:
        for name in ("prefill-0", "prefill-1"):  # D knows both
            warm = reference.prompt_of(LENGTH, seed=50)
            await stack.decode_at("decode-0", warm, await stack.prefill_at(name, warm), 2)
        first = asyncio.create_task(stack.tokens(reference.prompt_of(20, seed=7), max_tokens=1000))
        busy = await stack.until_state("reading", "decoding")
        prompt = reference.prompt_of(LENGTH, seed=1)
        second = asyncio.create_task(stack.tokens(prompt, max_tokens=NUM_TOKENS))
        held = await stack.until_state("held")
        name = next(name for name, worker in stack.workers.items() if worker.worker_id == held["prefill_worker"])
        with stopped(*stack.ranks(name)):
            await stack.http.post(f"{stack.router.url}/admin/requests/{busy['id']}/abort")
            await asyncio.gather(first, return_exceptions=True)
            assert await second == reference.greedy(tuple(prompt), NUM_TOKENS)
            assert await stack.metric("decode-0", "baton_worker_reads_timed_out_total") == 1
            assert await stack.metric("router", "baton_router_retries_total", leg="prefill_again") == 1
        await stack.until_idle()
