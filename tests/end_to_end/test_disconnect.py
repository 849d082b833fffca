"""A client that leaves gives its blocks back, whatever state its request is in. Prints the milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from baton_serve.baton.cluster.process import stopped
from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack, eventually

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Timed

#: One sequence at a time on each side, so that a second request has to wait; leases so long that no expiry helps.
FLAGS = {"dtype": "float32", "max-num-seqs": 1, "lease-duration-ms": 600_000}
LONG = {"max_tokens": 3000, "ignore_eos": True, "stream": True}


@asynccontextmanager
async def asking(stack: Stack, prompt: list[int], **more: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """One request on a connection of its own, so that leaving is closing the socket: cancel the task."""
    task = asyncio.create_task(stack.post("/v1/completions", prompt=prompt, temperature=0, **{**LONG, **more}))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def has_pinned(stack: Stack, worker: str) -> bool:
    return bool((await stack.state(worker))["pinned"])


async def told_p_itself(stack: Stack) -> bool:
    """The router has released a lease without Redis."""
    return await stack.metric(stack.router.url, "baton_router_leases_total", event="release_direct") == 1


@pytest.mark.slow
async def test_queued(tmp_path: Path, timed: Timed) -> None:
    """P stands still with as many requests as it takes; the next one waits in the router and holds nothing."""
    prompts = [reference.prompt_of(500, seed=seed) for seed in (1, 2, 3)]
    async with Stack(tmp_path, worker_flags=FLAGS) as stack:
        with stopped(*stack.ranks("prefill-0")) as go_on:
            async with asking(stack, prompts[0]), asking(stack, prompts[1]):
                await stack.until_state("prefilling", count=2)
                async with asking(stack, prompts[2]) as third:
                    row = await stack.until_state("queued")
                    with timed("client left while queued: forgotten"):
                        third.cancel()
                        await stack.until_gone(row["id"])
                assert await stack.metric("prefill-0", "baton_worker_requests_total") == 0
            go_on()
            await stack.until_idle()


@pytest.mark.slow
async def test_prefilling(tmp_path: Path, timed: Timed) -> None:
    flags = {**FLAGS, "max-num-batched-tokens": 64}
    async with (
        Stack(tmp_path, worker_flags=flags) as stack,
        asking(stack, reference.prompt_of(4000, seed=3)) as client,
    ):
        await stack.until_state("prefilling")
        await eventually(lambda: has_pinned(stack, "prefill-0"))
        with timed("client left while prefilling: blocks back"):
            client.cancel()
            await stack.until_idle()
        await stack.until_gone()
        assert await stack.metric("prefill-0", "baton_worker_prefill_tokens_total") < 4000


@asynccontextmanager
async def one_is_held(folder: Path) -> AsyncIterator[tuple[Stack, asyncio.Task[Any]]]:
    """D runs one sequence and is busy; the second request waits with its blocks leased on P. The first one goes on."""
    async with (
        Stack(folder, worker_flags=FLAGS) as stack,
        asking(stack, reference.prompt_of(100, seed=4)),
    ):
        await stack.until_state("decoding")
        async with asking(stack, reference.prompt_of(500, seed=5)) as second:
            await stack.until_state("held")
            assert (await stack.state("prefill-0"))["leased"] > 0
            yield stack, second
        assert [row["state"] for row in await stack.requests()] == ["decoding"]


@pytest.mark.slow
async def test_held(tmp_path: Path, timed: Timed) -> None:
    async with one_is_held(tmp_path) as (stack, held):
        with timed("client left while held: blocks back"):
            held.cancel()
            await stack.until_idle("prefill-0")


@pytest.mark.slow
async def test_held_while_redis_hangs(tmp_path: Path, timed: Timed) -> None:
    """P hears of it from the router, not after its patience with Redis is over."""
    async with one_is_held(tmp_path) as (stack, held):
        with stopped(stack.redis.pid):
            with timed("client left while held, and Redis hung: blocks back"):
                held.cancel()
                await stack.until_idle("prefill-0")
            await eventually(lambda: told_p_itself(stack))


@pytest.mark.slow
async def test_reading(tmp_path: Path, timed: Timed) -> None:
    """D's rank stands still, so the read cannot end: P's blocks go back at once, D's when NIXL is done with them."""
    async with Stack(tmp_path, worker_flags=FLAGS) as stack:
        with stopped(*stack.ranks("decode-0")) as go_on:
            async with asking(stack, reference.prompt_of(500, seed=6)) as client:
                await stack.until_state("reading")
                assert (await stack.state("prefill-0"))["leased"] > 0
                with timed("client left while reading: blocks back on P"):
                    client.cancel()
                    await stack.until_idle("prefill-0")
                await stack.until_gone()
            with timed("... and on D, once its rank could go on,"):
                go_on()
                await stack.until_idle("decode-0")


@pytest.mark.slow
async def test_decoding(tmp_path: Path, timed: Timed) -> None:
    async with (
        Stack(tmp_path, worker_flags=FLAGS) as stack,
        asking(stack, reference.prompt_of(500, seed=7)) as client,
    ):
        row = await stack.until_state("decoding")
        assert (await stack.state("decode-0"))["pinned"] > 0
        with timed("client left while decoding: blocks back"):
            client.cancel()
            await stack.until_idle()
        await stack.until_gone(row["id"])


@pytest.mark.slow
async def test_whenever_the_client_leaves_a_prefill_no_lease_is_left(tmp_path: Path) -> None:
    """A short prompt's prefill takes a few ms; clients leave all through it, and in the moment of its answer."""
    async with Stack(tmp_path, prefill_flags={"lease-duration-ms": 600_000}) as stack:
        for step in range(60):
            async with asking(stack, reference.prompt_of(40, seed=step), max_tokens=9, stream=False) as client:
                await asyncio.wait({client}, timeout=step * 0.0003)
        await stack.until_gone()
        await stack.until_idle()


async def test_who_is_not_streamed_to_is_decoding_while_d_decodes(stack: Stack) -> None:
    """And not ``reading`` to the end: the first renewal after the read tells."""
    body = {"model": MODEL, "prompt": "Hello", **LONG, "stream": False}
    asked = asyncio.create_task(stack.http.post(f"{stack.router.url}/v1/completions", json=body))
    row = await stack.until_state("decoding")
    assert not row["stream"]
    await stack.http.post(f"{stack.router.url}/admin/requests/{row['id']}/abort")
    assert (await asked).status_code == 499
    await stack.until_idle()
