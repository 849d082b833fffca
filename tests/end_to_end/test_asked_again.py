"""A worker stands still until the router asks it again under the same request id, since there is no other. Then it goes
on, with two requests of one id before it: the newer one counts, and the client sees what it would have seen anyway.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from baton_serve.baton.cluster.process import stopped
from tests.kits.whole import reference
from tests.kits.whole.stack import Stack, eventually
from tests.kits.whole.streams import NUM_TOKENS, all_at_once, asks, nothing, resumed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kits.whole.streams import Counts

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

#: Whoever stands still stays in the registry.
WORKERS = {"dtype": "float32", "registry-ttl-ms": 60_000}


async def test_the_only_d_is_asked_again(tmp_path: Path) -> None:
    async with Stack(tmp_path, worker_flags=WORKERS, router_flags={"token-timeout-s": 2}) as stack:
        # More at once than later, so that a connection is kept on which the newer request comes right away.
        both = asks(51) + asks(52)
        wanted, quiet = both[:3], (await all_at_once(stack, both, nothing))[:3]
        assert quiet[0]["usage"]["completion_tokens"] == NUM_TOKENS

        async def stand_still(_: Counts) -> None:
            with stopped(stack.workers["decode-0"].pid):
                await stack.until_state("reading", count=len(wanted))

        before = await resumed(stack)
        assert await all_at_once(stack, wanted, stand_still) == quiet
        assert await resumed(stack) >= before + len(wanted)
        await stack.until_gone()
        await stack.until_idle()


async def test_the_only_p_is_asked_again(tmp_path: Path) -> None:
    """It stands still in the middle of a step, with the first request in its engine and the second in its socket."""
    router = {"prefill-timeout-s": 2}
    async with Stack(tmp_path, worker_flags=WORKERS, router_flags=router) as stack:
        prompt = reference.prompt_of(150, seed=7)
        with stopped(*stack.ranks("prefill-0")) as rank_goes_on:
            asked = asyncio.create_task(stack.tokens(prompt, max_tokens=20))
            await eventually(lambda: _runs(stack, "prefill-0"))
            with stopped(stack.workers["prefill-0"].pid):
                await eventually(lambda: _is_asked_again(stack))
                rank_goes_on()
            found = await asked
        assert found == await stack.tokens(prompt, max_tokens=20)
        assert await _num_retries(stack) >= 1
        await stack.until_gone()
        await stack.until_idle()


async def _runs(stack: Stack, worker: str) -> bool:
    load = (await stack.http.get(f"{stack.workers[worker].url}/load")).json()
    return bool(load["running"])


async def _is_asked_again(stack: Stack) -> bool:
    (row,) = await stack.requests()
    return row["state"] == "prefilling" and await _num_retries(stack) >= 1


async def _num_retries(stack: Stack) -> float:
    return await stack.metric("router", "baton_router_retries_total", leg="prefill")
