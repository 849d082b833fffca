"""A client that leaves gives its blocks back, whatever state its request is in. Prints the milliseconds."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from baton_serve.baton.cluster.cluster import REDIS
from baton_serve.baton.cluster.process import stopped
from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

#: One sequence at a time on each side, so that a second request has to wait; leases so long that no expiry helps.
FLAGS = {"dtype": "float32", "max-num-seqs": 1, "lease-duration-ms": 600_000}
LONG = {"max_tokens": 3000, "ignore_eos": True, "stream": True}


class Client:
    """One request on a connection of its own, so that leaving is closing the socket."""

    def __init__(self, stack: Stack, prompt: list[int], **more: Any) -> None:
        self._stack = stack
        self._body = {"model": MODEL, "prompt": prompt, "temperature": 0, **LONG, **more}

    async def __aenter__(self) -> Client:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()
        await asyncio.wait({self._task})

    def leave(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        url = f"{self._stack.router.url}/v1/completions"
        async with self._stack.http.stream("POST", url, json=self._body) as answer:
            async for _ in answer.aiter_raw():
                pass


async def leave_and_measure(stack: Stack, client: Client, *workers: str) -> float:
    """Milliseconds from the client's leaving until these workers hold nothing for it and the router forgot it."""
    start = time.perf_counter()
    client.leave()
    await stack.until_idle(*workers)
    elapsed_ms = (time.perf_counter() - start) * 1e3
    await stack.until_gone()
    return elapsed_ms


async def has_pinned(stack: Stack, worker: str) -> bool:
    return bool((await stack.state(worker))["pinned"])


async def told_p_itself(stack: Stack) -> bool:
    """The router has released a lease without Redis."""
    return await stack.metric(stack.router.url, "baton_router_leases_total", event="release_direct") == 1


def report(capsys: pytest.CaptureFixture[str], state: str, elapsed_ms: float) -> None:
    with capsys.disabled():
        print(f"\n  client left while {state}: blocks back after {elapsed_ms:.1f} ms")


@pytest.mark.slow
async def test_queued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """P stands still with as many requests as it takes; the next one waits in the router and holds nothing."""
    prompts = [reference.prompt_of(500, seed=seed) for seed in (1, 2, 3)]
    async with Stack(tmp_path, worker_flags=FLAGS) as stack:
        with stopped(*stack.ranks("prefill-0")) as go_on:
            async with Client(stack, prompts[0]), Client(stack, prompts[1]):
                await stack.until_state("prefilling", count=2)
                async with Client(stack, prompts[2]) as third:
                    row = await stack.until_state("queued")
                    start = time.perf_counter()
                    third.leave()
                    await stack.until_gone(row["id"])
                    report(capsys, "queued", (time.perf_counter() - start) * 1e3)
                assert await stack.metric("prefill-0", "baton_worker_requests_total") == 0
            go_on()
            await stack.until_idle()


@pytest.mark.slow
async def test_prefilling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = {**FLAGS, "max-num-batched-tokens": 64}
    async with (
        Stack(tmp_path, worker_flags=flags) as stack,
        Client(stack, reference.prompt_of(4000, seed=3)) as client,
    ):
        await stack.until_state("prefilling")
        await eventually(lambda: has_pinned(stack, "prefill-0"))
        report(capsys, "prefilling", await leave_and_measure(stack, client))
        assert await stack.metric("prefill-0", "baton_worker_prefill_tokens_total") < 4000


@asynccontextmanager
async def one_is_held(folder: Path) -> AsyncIterator[tuple[Stack, Client]]:
    """D runs one sequence and is busy; the second request waits with its blocks leased on P. The first one goes on."""
    async with (
        Stack(folder, worker_flags=FLAGS) as stack,
        Client(stack, reference.prompt_of(100, seed=4)),
    ):
        await stack.until_state("decoding")
        async with Client(stack, reference.prompt_of(500, seed=5)) as second:
            await stack.until_state("held")
            assert (await stack.state("prefill-0"))["leased"] > 0
            yield stack, second
        assert [row["state"] for row in await stack.requests()] == ["decoding"]


async def leave_p(stack: Stack, held: Client, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The held request's client leaves; waits until P has its blocks back."""
    start = time.perf_counter()
    held.leave()
    await stack.until_idle("prefill-0")
    report(capsys, state, (time.perf_counter() - start) * 1e3)


@pytest.mark.slow
async def test_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with one_is_held(tmp_path) as (stack, held):
        await leave_p(stack, held, "held", capsys)


@pytest.mark.slow
async def test_held_while_redis_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """P hears of it from the router, not after its patience with Redis is over."""
    async with one_is_held(tmp_path) as (stack, held):
        stack.cluster.signal(REDIS, signal.SIGSTOP)
        try:
            await leave_p(stack, held, "held, and Redis hung", capsys)
            await eventually(lambda: told_p_itself(stack))
        finally:
            stack.cluster.signal(REDIS, signal.SIGCONT)


@pytest.mark.slow
async def test_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """D's rank stands still, so the read cannot end: P's blocks go back at once, D's when NIXL is done with them."""
    async with Stack(tmp_path, worker_flags=FLAGS) as stack:
        with stopped(*stack.ranks("decode-0")) as go_on:
            async with Client(stack, reference.prompt_of(500, seed=6)) as client:
                await stack.until_state("reading")
                assert (await stack.state("prefill-0"))["leased"] > 0
                report(capsys, "reading (on P)", await leave_and_measure(stack, client, "prefill-0"))
            start = time.perf_counter()
            go_on()
            await stack.until_idle("decode-0")
            report(capsys, "reading (on D, after its rank could go on)", (time.perf_counter() - start) * 1e3)


@pytest.mark.slow
async def test_decoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        Stack(tmp_path, worker_flags=FLAGS) as stack,
        Client(stack, reference.prompt_of(500, seed=7)) as client,
    ):
        row = await stack.until_state("decoding")
        assert (await stack.state("decode-0"))["pinned"] > 0
        report(capsys, "decoding", await leave_and_measure(stack, client))
        assert row["id"] not in {r["id"] for r in await stack.requests()}


async def test_who_is_not_streamed_to_is_decoding_while_d_decodes(stack: Stack) -> None:
    """And not ``reading`` to the end: the first renewal after the read tells."""
    body = {"model": MODEL, "prompt": "Hello", **LONG, "stream": False}
    asked = asyncio.create_task(stack.http.post(f"{stack.router.url}/v1/completions", json=body))
    row = await stack.until_state("decoding")
    assert not row["stream"]
    await stack.http.post(f"{stack.router.url}/admin/requests/{row['id']}/abort")
    assert (await asked).status_code == 499
    await stack.until_idle()
