"""Somebody writes announcements into the router's Redis: they get neither the internal token nor a prompt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import httpx
import pytest

from baton_serve.core.protocol.hello import worker_proof
from baton_serve.core.protocol.token_keys import announcement_key, hello_key
from tests.kits.patience import PATIENCE_S
from tests.kits.router.cluster import chat
from tests.kits.router.process import Announced, RouterProcess

TOKEN = "s3cret-internal"


@pytest.fixture
async def router(redis_url: str) -> AsyncIterator[RouterProcess]:
    made = RouterProcess()
    yield made
    if made.process.returncode is None:
        await made.stop()


async def test_a_forged_worker_is_given_neither_the_token_nor_a_prompt(redis_url: str, router: RouterProcess) -> None:
    async with Announced(redis_url) as forged:
        await router.start(redis_url=redis_url, internal_token=TOKEN)
        answer, metrics = await asked(router)
        assert forged.p.headers == forged.d.headers == [], "nothing was sent to them"
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "No worker is known.")
    assert 'baton_router_ignored_announcements_total{kind="worker",reason="unsigned"} 2.0' in metrics
    _, log = await router.stop()
    assert log.count("its announcement is not signed with this router's internal token") == 1


async def test_whoever_took_a_dead_workers_port_gets_neither_the_token_nor_a_prompt(
    redis_url: str, router: RouterProcess
) -> None:
    """Its announcement is signed, and kept in Redis by somebody who listens where it did."""
    async with Announced(redis_url, announcement_key(TOKEN)) as replayed:
        await router.start(redis_url=redis_url, internal_token=TOKEN)
        answer, metrics = await asked(router)
        assert replayed.p.headers == replayed.d.headers == [], "nothing was sent to them"
        assert replayed.p.num_proofs and replayed.d.num_proofs
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "No worker is known.")
    assert 'baton_router_worker_proofs_total{outcome="proven"} 0.0' in metrics
    _, log = await router.stop()
    assert log.count("it did not prove that it knows the internal token") == 1


async def test_workers_that_prove_themselves_serve_the_first_request(redis_url: str, router: RouterProcess) -> None:
    async with Announced(redis_url, announcement_key(TOKEN)) as workers:
        for worker in (workers.p, workers.d):
            worker.prove = partial(worker_proof, hello_key(TOKEN), workers.record(worker))
        await router.start(redis_url=redis_url, internal_token=TOKEN)
        answer, metrics = await asked(router)
        assert answer.status_code == 200, answer.text
        assert [one.headers[0]["x-baton-internal-token"] for one in (workers.p, workers.d)] == [TOKEN, TOKEN]
        assert (workers.p.num_proofs, workers.d.num_proofs) == (1, 1), "once, not with every request"
    assert 'baton_router_worker_proofs_total{outcome="proven"} 2.0' in metrics


async def asked(router: RouterProcess) -> tuple[httpx.Response, str]:
    async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client:
        return await client.post("/v1/chat/completions", json=chat()), (await client.get("/metrics")).text
