"""Blocks that P keeps while the router holds a request: renewed as long as it takes, released when nobody wants any."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.kits.vllm.asking import Answer, Stream, ask, chat, prompts, streamed
from tests.kits.vllm.stack import EXPIRED, LEASE_DURATION_S, Router, VllmStack

PROMPT = prompts()[14]
#: A cancel frees P's blocks within this time, seconds.
CANCEL_S = 1.0


@asynccontextmanager
async def occupied(vllm: VllmStack, router: Router, name: str) -> AsyncIterator[None]:
    """A server that has a request and does not go on with it. In the end its client leaves, and the server goes on."""
    request = streamed(vllm.http, router.url, *chat("What is Baton?", 3000, ignore_eos=True))
    async with request as response:
        await Stream(response).read(2)
        with vllm.paused(name):
            yield


async def test_a_held_request_outlives_four_lease_durations(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1")
    wanted = await ask(vllm.http, vllm.url("d1"), *chat(PROMPT))
    expired = await vllm.metric("p1", EXPIRED)
    async with vllm.router([vllm.address("p1")], [vllm.address("d1", 1)], token_timeout_s=300) as router:
        async with occupied(vllm, router, "d1"):
            held = asyncio.create_task(ask(vllm.http, router.url, *chat(PROMPT)))
            await vllm.until_held(router)
            num_lost = await _num_lost_until_one_lasts(vllm, router, 4 * LEASE_DURATION_S)
        assert await held == wanted
        await vllm.until_free("p1", "d1")
    assert num_lost <= 1
    assert await vllm.metric("p1", EXPIRED) == expired + num_lost


async def test_without_renewal_it_expires(vllm: VllmStack) -> None:
    """As plain engines, the servers are given the same two legs by the same router, which renews nothing."""
    await vllm.need("p1", "d1")
    expired = await vllm.metric("p1", EXPIRED)
    flags = {"default_max_in_flight": 1, "token_timeout_s": 300}
    async with vllm.router([vllm.url("p1")], [vllm.url("d1")], **flags) as router:
        async with occupied(vllm, router, "d1"):
            held = asyncio.create_task(ask(vllm.http, router.url, *chat(PROMPT)))
            await vllm.until_held(router)
            await vllm.until(lambda: _more(vllm, expired), "P has given the blocks up")
        await held
    await vllm.until_free("p1", "d1")


async def test_a_cancel_while_held_frees_the_blocks_at_once(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1")
    expired = await vllm.metric("p1", EXPIRED)
    async with (
        vllm.router([vllm.address("p1")], [vllm.address("d1", 1)], token_timeout_s=300) as router,
        occupied(vllm, router, "d1"),
    ):
        held = asyncio.create_task(ask(vllm.http, router.url, *chat(PROMPT)))
        await vllm.until_held(router)
        await vllm.until_holds("p1")
        held.cancel()
        await vllm.until_free("p1", timeout_s=CANCEL_S)
    assert await vllm.metric("p1", EXPIRED) == expired


async def test_an_abort_while_held_frees_the_blocks_at_once(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1")
    async with (
        vllm.router([vllm.address("p1")], [vllm.address("d1", 1)], token_timeout_s=300) as router,
        occupied(vllm, router, "d1"),
    ):
        held = asyncio.create_task(ask(vllm.http, router.url, *chat(PROMPT)))
        await vllm.until_held(router)
        await vllm.until_holds("p1")
        (row,) = [row for row in await vllm.requests(router) if row["state"] == "held"]
        await vllm.http.post(f"{router.url}/admin/requests/{row['id']}/abort")
        await vllm.until_free("p1", timeout_s=CANCEL_S)
        answer: Answer = await held
        assert answer.error is not None


async def test_a_killed_router_leaves_blocks_for_one_lease_only(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1")
    wanted = await ask(vllm.http, vllm.url("d1"), *chat(PROMPT))
    addresses: dict[str, Any] = {"prefill": [vllm.address("p1")], "decode": [vllm.address("d1", 1)]}
    async with vllm.router(**addresses, token_timeout_s=300) as router:
        request = streamed(vllm.http, router.url, *chat("What is Baton?", 3000, ignore_eos=True))
        async with request as response:
            await Stream(response).read(2)
            with vllm.paused("d1"):
                held = asyncio.create_task(ask(vllm.http, router.url, *chat(PROMPT)))
                await vllm.until_held(router)
                await vllm.until_holds("p1")
                await vllm.kill(router.name)
                await asyncio.wait({held})
                assert held.exception() is not None
                await vllm.until_free("p1")
    await vllm.until_free("d1")
    async with vllm.router(**addresses) as router:
        assert await ask(vllm.http, router.url, *chat(PROMPT)) == wanted


async def _num_lost_until_one_lasts(vllm: VllmStack, router: Router, seconds: float) -> int:
    """Wait until the held request has had one lease for so long; returns how many it had before.

    A router that has just started may not be able to renew yet, on a machine where that takes longer than a lease.
    Then it prefills again, and that lease has to last. The gauge of P's blocks says nothing here: while P is idle, it
    stays as it was.
    """
    leases: dict[str, float] = {}
    while True:
        for row in await vllm.requests(router):
            if row["state"] == "held" and row["lease_id"]:
                now_s = time.monotonic()
                if now_s - leases.setdefault(row["lease_id"], now_s) >= seconds:
                    return len(leases) - 1
        await asyncio.sleep(0.2)


async def _more(vllm: VllmStack, expired: float) -> bool:
    return await vllm.metric("p1", EXPIRED) > expired
