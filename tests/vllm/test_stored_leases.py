"""What a vLLM that has loaded Baton's connector has in Redis, as Baton's own workers do: leases, and an announcement.

All servers here announce themselves, also those whose address a router is given.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import pytest_asyncio

from baton_serve.baton.processes.vllm.connectors import BATON
from bench.connector.pair import CHECKS
from bench.vllm.servers import EXPIRED, READS
from tests.kits.vllm.asking import ask, ask_streamed, chat, held, prompts, worker_of
from tests.kits.vllm.stack import MODEL, Router, VllmStack, vllm_stack
from tests.vllm.conftest import VARIABLE

LEASE_DURATION_S = 6
PROMPT = prompts()[14]
#: A client that leaves, and an abort, free P's blocks within this time, seconds: long before the lease ends.
CANCEL_S = 3.0
#: A server that ends by itself is forgotten within this time of its end, seconds: long before its entry runs out.
WITHDRAWN_S = 2.0
PROMPT_TOKENS = "vllm:prompt_tokens_total"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def vllm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmStack]:
    folder = tmp_path_factory.mktemp("stored")
    async with vllm_stack(folder, os.environ[VARIABLE], BATON, LEASE_DURATION_S, announces=True) as stack:
        yield stack


def routed(vllm: VllmStack, *decode: str, **flags: Any) -> AbstractAsyncContextManager[Router]:
    """A router that shares the servers' Redis."""
    return vllm.router([vllm.address("p1")], list(decode), **shared(vllm), **flags)


def shared(vllm: VllmStack) -> dict[str, Any]:
    return {"token_timeout_s": 300, "held_timeout_s": 300, "redis_url": vllm.cluster.redis.url}


async def leases(vllm: VllmStack, router: Router) -> list[dict[str, Any]]:
    listed = (await vllm.http.get(f"{router.url}/admin/leases")).json()
    assert listed["unreadable_engines"] == []
    found: list[dict[str, Any]] = listed["leases"]
    return found


async def checks(vllm: VllmStack, name: str) -> Counter[str]:
    samples = await vllm.cluster.metrics(name)
    return Counter({one.labels["verdict"]: int(one.value) for one in samples if one.name == CHECKS and one.value})


async def test_a_held_request_is_renewed_and_listed(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1")
    wanted = await ask(vllm.http, vllm.url("d1"), *chat(PROMPT))
    expired = await vllm.metric("p1", EXPIRED)
    async with routed(vllm, vllm.address("d1", 1)) as router:
        async with held(vllm, router, PROMPT) as asked:
            reads, before = await vllm.metric("d1", READS), await checks(vllm, "d1")
            (row,) = [row for row in await vllm.requests(router) if row["state"] == "held"]
            await asyncio.sleep(2.5 * LEASE_DURATION_S)
            assert await vllm.cache_usage("p1") > 0
            (lease,) = await leases(vllm, router)
            assert (lease["request_id"], lease["state"]) == (row["id"], "held")
        assert await asked == wanted
        await vllm.until_free("p1", "d1")
        assert await leases(vllm, router) == []
    assert await vllm.metric("p1", EXPIRED) == expired
    assert await vllm.metric("d1", READS) == reads + 1  # D has read what was held, and not computed it again
    assert await checks(vllm, "d1") - before == {"kept": 1}


async def test_a_client_that_leaves_frees_the_blocks_that_a_stopped_d_would_read(vllm: VllmStack) -> None:
    """A stock P would keep them until its lease ends: only D may tell it, and D stands still."""
    await vllm.need("p1", "d1")
    wanted = await ask(vllm.http, vllm.url("d1"), *chat(PROMPT))
    expired = await vllm.metric("p1", EXPIRED)
    async with routed(vllm, vllm.address("d1")) as router:
        with vllm.paused("d1"):
            asked = asyncio.create_task(ask_streamed(vllm.http, router.url, *chat(PROMPT)))
            await vllm.until(lambda: worker_of(vllm, router, "decode"), "D has the request")
            await vllm.until_holds("p1")
            asked.cancel()
            await vllm.until_free("p1", timeout_s=CANCEL_S)
        await vllm.until_free("d1")
        assert await ask(vllm.http, router.url, *chat(PROMPT)) == wanted
    assert await vllm.metric("p1", EXPIRED) == expired


async def test_an_abort_while_held_frees_the_blocks_at_once(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1")
    async with routed(vllm, vllm.address("d1", 1)) as router, held(vllm, router, PROMPT) as asked:
        (row,) = [row for row in await vllm.requests(router) if row["state"] == "held"]
        await vllm.http.post(f"{router.url}/admin/requests/{row['id']}/abort")
        await vllm.until_free("p1", timeout_s=CANCEL_S)
        assert (await asked).error is not None


async def test_a_d_that_dies_before_it_has_read_costs_no_second_prefill(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1", "d2")
    wanted = await ask(vllm.http, vllm.url("d1"), *chat(PROMPT))
    async with routed(vllm, vllm.address("d1"), vllm.address("d2")) as router:
        with vllm.paused("d1", "d2"):
            asked = asyncio.create_task(ask_streamed(vllm.http, router.url, *chat(PROMPT)))
            await vllm.until(lambda: worker_of(vllm, router, "decode"), "a D has the request")
            prefilled = await vllm.metric("p1", PROMPT_TOKENS)
            victim = await worker_of(vllm, router, "decode")
            await vllm.kill(victim)
        assert await asked == wanted
        await vllm.until_free("p1")
    assert await vllm.metric("p1", PROMPT_TOKENS) == prefilled
    assert await checks(vllm, "d2" if victim == "d1" else "d1") == {"kept": 1}


async def test_without_redis_for_a_while_nothing_is_lost(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1")
    wanted = await ask(vllm.http, vllm.url("d1"), *chat(PROMPT))
    async with routed(vllm, vllm.address("d1", 1)) as router:
        async with held(vllm, router, PROMPT) as asked:
            prefilled = await vllm.metric("p1", PROMPT_TOKENS)
            vllm.cluster.redis.kill()
            await asyncio.sleep(1.5 * LEASE_DURATION_S)
            assert await vllm.cache_usage("p1") > 0
            vllm.cluster.redis.start()
        assert await asked == wanted
        await vllm.until_free("p1", "d1")
    assert await vllm.metric("p1", PROMPT_TOKENS) == prefilled


async def test_servers_are_found_by_their_announcements_and_forgotten(vllm: VllmStack) -> None:
    await vllm.need("p1", "d1")
    wanted = await ask(vllm.http, vllm.url("d1"), *chat(PROMPT))
    async with vllm.router([], [], **shared(vllm)) as router:
        p, d = f"vllm+{vllm.url('p1')}", f"vllm+{vllm.url('d1')}"
        found = await workers(vllm, router)
        assert {one: found[one]["role"] for one in (p, d)} == {p: "prefill", d: "decode"}
        for row in (found[p], found[d]):
            assert (row["kind"], row["version"].partition("+")[0], row["limit"] % 16) == ("vllm", "0.32.0", 0)
            assert (row["models"][0], row["takes_work"], row["has_fence"]) == (MODEL, True, True)
        before = await checks(vllm, "d1")
        assert await ask(vllm.http, router.url, *chat(PROMPT)) == wanted
        assert await checks(vllm, "d1") - before == {"kept": 1}
        await vllm.stop("d1")
        await vllm.until(lambda: are_known(vllm, router, p), "the server that has stopped is forgotten", WITHDRAWN_S)
        await vllm.kill("p1")
        assert await are_known(vllm, router, p), "its entry has to run out"
        await vllm.until(lambda: are_known(vllm, router), "the server that was killed is forgotten")


async def workers(vllm: VllmStack, router: Router) -> dict[str, dict[str, Any]]:
    """The workers that a router knows, by id."""
    listed = (await vllm.http.get(f"{router.url}/admin/workers")).json()["workers"]
    return {row["id"]: row for row in listed}


async def are_known(vllm: VllmStack, router: Router, *ids: str) -> bool:
    return (await workers(vllm, router)).keys() == set(ids)
