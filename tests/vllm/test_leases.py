"""Blocks that P keeps while the router holds a request: renewed as long as it takes, released when nobody wants any."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.vllm.servers import EXPIRED, READS
from tests.kits.vllm.asking import ask, chat, held, prompts
from tests.kits.vllm.stack import LEASE_DURATION_S, VllmStack

PROMPT = prompts()[14]
#: vLLM's count of reads that P was told of when it had no such lease any more.
LATE = "vllm:nixl_num_notifications_after_expiry_total"
#: How often a router asks servers by default, seconds.
POLL_S = 0.5
#: A cancel frees P's blocks within this time, seconds.
CANCEL_S = 1.0


async def test_a_held_request_outlives_four_lease_durations(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1")
    wanted = await ask(vllm.http, vllm.url("d1"), *chat(PROMPT))
    expired = await vllm.metric("p1", EXPIRED)
    patience = {"token_timeout_s": 300, "held_timeout_s": 300}
    async with vllm.router([vllm.address("p1")], [vllm.address("d1", 1)], **patience) as router:
        async with held(vllm, router, PROMPT) as asked:
            reads = await vllm.metric("d1", READS)
            await vllm.until_renewed(router)
            await asyncio.sleep(4 * LEASE_DURATION_S)
            assert await vllm.cache_usage("p1") > 0
        assert await asked == wanted
        await vllm.until_free("p1", "d1")
    assert await vllm.metric("p1", EXPIRED) == expired
    assert await vllm.metric("d1", READS) == reads + 1  # D has read what was held, and not computed it again


async def test_without_renewal_it_expires(vllm: VllmStack) -> None:
    """As plain engines, the servers are given the same two legs by the same router, which renews nothing."""
    await vllm.need("p1", "d1")
    expired = await vllm.metric("p1", EXPIRED)
    flags = {"default_max_in_flight": 1, "token_timeout_s": 300}
    async with vllm.router([vllm.url("p1")], [vllm.url("d1")], **flags) as router:
        async with held(vllm, router, PROMPT) as asked:
            await vllm.until(lambda: _more(vllm, "p1", EXPIRED, expired), "P has given the blocks up")
        await asked
    await vllm.until_free("p1", "d1")


async def test_a_cancel_while_held_frees_the_blocks_at_once(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1")
    expired = await vllm.metric("p1", EXPIRED)
    async with (
        vllm.router([vllm.address("p1")], [vllm.address("d1", 1)], token_timeout_s=300) as router,
        held(vllm, router, PROMPT) as asked,
    ):
        await vllm.until_renewed(router)
        asked.cancel()
        await vllm.until_free("p1", timeout_s=CANCEL_S)
    assert await vllm.metric("p1", EXPIRED) == expired


async def test_an_abort_while_held_frees_the_blocks_at_once(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1")
    async with (
        vllm.router([vllm.address("p1")], [vllm.address("d1", 1)], token_timeout_s=300) as router,
        held(vllm, router, PROMPT) as asked,
    ):
        await vllm.until_renewed(router)
        (row,) = [row for row in await vllm.requests(router) if row["state"] == "held"]
        await vllm.http.post(f"{router.url}/admin/requests/{row['id']}/abort")
        await vllm.until_free("p1", timeout_s=CANCEL_S)
        assert (await asked).error is not None


async def test_a_cancelled_unstreamed_answer_rings_no_alarm(vllm: VllmStack) -> None:
    """D then says once more that it has read, which P counts as said too late."""
    await vllm.need("p1", "d1")
    reads, late = await vllm.metric("d1", READS), await vllm.metric("p1", LATE)
    async with vllm.router([vllm.address("p1")], [vllm.address("d1")]) as router:
        asked = asyncio.create_task(ask(vllm.http, router.url, *chat(PROMPT, 400, ignore_eos=True)))
        await vllm.until(lambda: _more(vllm, "d1", READS, reads), "D has read")
        asked.cancel()

        async def is_told() -> bool:
            await ask(vllm.http, router.url, *chat(prompts()[3], 4))  # P takes notifications only when it steps
            return await _more(vllm, "p1", LATE, late)

        await vllm.until(is_told, "D has said so once more")
        await asyncio.sleep(4 * POLL_S)
        metrics = (await vllm.http.get(f"{router.url}/metrics")).text
        assert "baton_router_vllm_polls_total" in metrics
        assert "baton_router_vllm_unexpected_expiries_total{" not in metrics


async def test_a_killed_router_leaves_blocks_for_one_lease_only(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1")
    wanted = await ask(vllm.http, vllm.url("d1"), *chat(PROMPT))
    addresses: dict[str, Any] = {"prefill": [vllm.address("p1")], "decode": [vllm.address("d1", 1)]}
    async with vllm.router(**addresses, token_timeout_s=300) as router, held(vllm, router, PROMPT) as asked:
        await vllm.until_renewed(router)
        await vllm.kill(router.name)
        await asyncio.wait({asked})
        assert asked.exception() is not None
        await vllm.until_free("p1")
    await vllm.until_free("d1")
    async with vllm.router(**addresses) as router:
        assert await ask(vllm.http, router.url, *chat(PROMPT)) == wanted


async def _more(vllm: VllmStack, name: str, metric: str, before: float) -> bool:
    return await vllm.metric(name, metric) > before
