"""A rank dies: its engine is dead at once, says so, and is nobody's choice any more. Nothing hangs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton_serve.baton.cluster.process import command_line, stopped
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.registry.redis_registry import RedisRegistry
from tests.kits.patience import PATIENCE_S
from tests.kits.registry import snapshot
from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack
from tests.kits.whole.streams import Counts, lines

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

#: An entry of the registry that is not taken back would stay until long after the test.
FLAGS = {"dtype": "float32", "registry-ttl-ms": 600_000}


async def registered(stack: Stack) -> set[str]:
    """URLs of the workers in the registry, whatever the router has heard of them."""
    registry = RedisRegistry(stack.redis.url, WORKERS)
    try:
        return {status.record.url for status in await snapshot(registry)}
    finally:
        await registry.close()


@asynccontextmanager
async def streaming(stack: Stack, url: str) -> AsyncIterator[asyncio.Task[list[str]]]:
    """One long answer of a worker, which has begun; the task returns its lines."""
    asked = {"prompt": reference.prompt_of(40, seed=1), "max_tokens": 6000, "ignore_eos": True, "temperature": 0}
    body, counts = {"model": MODEL, "stream": True, **asked}, Counts(1)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lines(stack, "/v1/completions", body, counts.of[0], url))
        await asyncio.wait_for(counts.more(5), PATIENCE_S)
        yield running


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_dead_rank_ends_its_engine_and_nobody_waits(tmp_path: Path, victim: int) -> None:
    named = {"pair": {"role": "both", "tp": 2, **FLAGS}, "other": {"role": "both", **FLAGS}}
    async with Stack(tmp_path, prefill=0, decode=0, named=named) as stack:
        pair = stack.workers["pair"]
        ranks = stack.ranks("pair")
        async with streaming(stack, pair.url) as running:
            began = time.monotonic()
            os.kill(ranks[victim], signal.SIGKILL)
            found = await asyncio.wait_for(running, PATIENCE_S)
        why = await asyncio.wait_for(pair.child.ended(), PATIENCE_S)
        print(f"\nrank {victim} killed: the worker had left after {time.monotonic() - began:.2f} s: {why}")
        assert json.loads(found[-1][6:])["error"]["code"] == "engine_dead"
        assert f"rank {victim} was killed by signal 9" in why
        assert not any(map(command_line, ranks)), "no rank outlives its engine"
        assert await registered(stack) == {stack.workers["other"].url}
        prompt = reference.prompt_of(30, seed=3)
        assert await stack.tokens(prompt, max_tokens=8) == reference.greedy(tuple(prompt), 8)


async def test_a_rank_that_hangs_in_a_forward_pass_is_taken_for_dead(tmp_path: Path) -> None:
    named = {"pair": {"role": "both", "tp": 2, "step-timeout-s": 2, **FLAGS}}
    async with Stack(tmp_path, prefill=0, decode=0, named=named, with_router=False) as stack:
        pair = stack.workers["pair"]
        ranks = stack.ranks("pair")
        async with streaming(stack, pair.url) as running:
            began = time.monotonic()
            with stopped(ranks[1]):
                found = await asyncio.wait_for(running, PATIENCE_S)
                why = await asyncio.wait_for(pair.child.ended(), PATIENCE_S)
        print(f"\nrank 1 stands still: the worker had left after {time.monotonic() - began:.2f} s: {why}")
        assert json.loads(found[-1][6:])["error"]["code"] == "engine_dead"
        assert "step_timeout_s" in why
        assert "no answer from ranks 0 and 1" in why, "one hangs, the other waits for it"
        assert not any(map(command_line, ranks))
        assert await registered(stack) == set()


NUM_CLIENTS = 12
#: Answers that each client has before the rank dies, and gets from then on at least.
NUM_BEFORE, NUM_AFTER = 2, 6


async def test_the_only_p_loses_its_rank_under_load_and_no_request_fails(tmp_path: Path) -> None:
    """What is left of it answers for a moment that its engine is dead: D can do without it, as when all of it dies."""
    prompts = [reference.prompt_of(30, seed=seed) for seed in range(NUM_CLIENTS)]
    expected = [reference.greedy(tuple(prompt), 4) for prompt in prompts]
    async with Stack(tmp_path, worker_flags=FLAGS) as stack:
        num_before, num_after = [0] * NUM_CLIENTS, [0] * NUM_CLIENTS
        begun, killed = asyncio.Event(), asyncio.Event()

        async def client(i: int) -> None:
            while num_after[i] < NUM_AFTER:
                assert await stack.tokens(prompts[i], max_tokens=4) == expected[i]
                (num_after if killed.is_set() else num_before)[i] += 1
                if min(num_before) >= NUM_BEFORE:
                    begun.set()

        async with asyncio.TaskGroup() as clients:
            for i in range(NUM_CLIENTS):
                clients.create_task(client(i))
            await asyncio.wait_for(begun.wait(), 60)
            os.kill(stack.ranks("prefill-0")[0], signal.SIGKILL)
            killed.set()
        assert "was killed by signal 9" in await stack.workers["prefill-0"].child.ended()
        print(f"\n{sum(num_before + num_after)} exact answers")
        assert await stack.metric("router", "baton_router_direct_requests_total", reason="unreachable") > 0
