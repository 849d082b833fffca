"""Workers come and go under load, by starting and stopping processes and through the admin REST; no request fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kits.whole import reference
from tests.kits.whole.stack import Stack, eventually

pytestmark = pytest.mark.slow

NUM_CLIENTS = 3
MAX_TOKENS = 8
#: Requests that are answered before a change counts as survived.
ENOUGH = 4 * NUM_CLIENTS


class Load:
    """Clients that ask one request after the other. Each knows what its prompt's tokens must be."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.num_done = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def run(self, seed: int) -> None:
        prompt = reference.prompt_of(40 + 30 * seed, seed=seed)
        expected: list[int] = []
        while True:
            tokens = await self._stack.tokens(prompt, max_tokens=MAX_TOKENS)
            expected = expected or tokens
            assert tokens == expected
            assert len(tokens) == MAX_TOKENS
            self.num_done += 1

    async def more(self, num: int = ENOUGH) -> None:
        """Until so many more requests are answered; raises what made one fail."""
        wanted = self.num_done + num

        async def done() -> bool:
            for task in self.tasks:
                if task.done():
                    task.result()
            return self.num_done >= wanted

        await eventually(done)


@asynccontextmanager
async def load_on(stack: Stack) -> AsyncIterator[Load]:
    load = Load(stack)
    load.tasks = [asyncio.create_task(load.run(seed)) for seed in range(NUM_CLIENTS)]
    try:
        yield load
        await load.more()
    finally:
        for task in load.tasks:
            task.cancel()
        await asyncio.wait(load.tasks)


async def served(stack: Stack, worker: str) -> float:
    return await stack.metric(worker, "baton_worker_requests_total")


async def until_serving(stack: Stack, *workers: str) -> None:
    """Until each of them has answered a request that came after this call."""
    for worker in workers:
        before = await served(stack, worker)

        async def has_served(worker: str = worker, before: float = before) -> bool:
            return await served(stack, worker) > before

        await eventually(has_served)


async def test_no_request_fails_while_workers_come_and_go(tmp_path: Path) -> None:
    """1P1D, 3P3D, one of them drained and resumed, 1P2D. One stack: most of the time goes into starting processes."""
    async with Stack(tmp_path, worker_flags={"dtype": "float32"}) as stack, load_on(stack) as load:
        await load.more()
        new = {f"{role}-{i}": {"role": role} for role in ("prefill", "decode") for i in (1, 2)}
        await asyncio.gather(*(stack.start_worker(name, flags) for name, flags in new.items()))
        await until_serving(stack, *stack.workers)
        await drain_and_resume(stack, load, "decode-1")
        await asyncio.gather(*map(stack.stop_worker, ("prefill-0", "prefill-1", "decode-0")))
        await load.more()
        assert set(stack.workers) == {"prefill-2", "decode-1", "decode-2"}
        await until_serving(stack, *stack.workers)
        assert await failed(stack) == 0


async def drain_and_resume(stack: Stack, load: Load, name: str) -> None:
    """What it has is finished, nothing new comes; then it comes again."""
    url = f"{stack.router.url}/admin/workers/{stack.workers[name].worker_id}"
    answer = await stack.http.post(f"{url}/drain")
    assert (answer.status_code, answer.json()["told"]) == (200, True)

    async def is_quiet() -> bool:
        state = (await stack.http.get(f"{stack.workers[name].url}/load")).json()
        return bool(state["draining"] and not state["running"] + state["waiting"] + state["reading"])

    await eventually(is_quiet)
    before = await served(stack, name)
    await load.more()
    assert await served(stack, name) == before
    assert (await stack.http.post(f"{url}/resume")).status_code == 200
    await until_serving(stack, name)


async def failed(stack: Stack) -> float:
    return await stack.metric("router", "baton_router_requests_ended_total", outcome="failed")
