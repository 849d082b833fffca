"""Somebody writes announcements into the router's Redis: they get neither the internal token nor a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from router_cluster import chat
from test_router_process import Announced, RouterProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
        async with httpx.AsyncClient(base_url=router.url, timeout=30) as client:
            answer = await client.post("/v1/chat/completions", json=chat())
            metrics = (await client.get("/metrics")).text
        assert forged.p.headers == forged.d.headers == [], "nothing was sent to them"
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "No worker is known yet.")
    assert 'baton_router_ignored_announcements_total{kind="worker",reason="unsigned"} 2.0' in metrics
    _, log = await router.stop()
    assert log.count("its announcement is not signed with this router's internal token") == 1
