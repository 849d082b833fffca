"""How the router tells workers which requests for forms are of one client."""

from __future__ import annotations

from typing import Any

import pytest

from core.protocol.client_key import HEADER
from router.settings import RouterSettings
from tests.kits.router.cluster import Cluster, chat, make_settings

FORM = {"response_format": {"type": "json_object"}}
FORCED = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": "required",
}


async def told(cluster: Cluster, authorization: str = "", **more: Any) -> set[str | None]:
    """What both workers are told of the request's client."""
    headers = {HEADER: "f" * 16, **({"authorization": authorization} if authorization else {})}
    answer = await cluster.post(chat(**more), headers=headers)
    assert answer.status_code == 200, answer.text
    return {worker.headers[-1].get(HEADER) for worker in cluster.workers}


async def test_without_keys_a_client_is_an_address(cluster: Cluster) -> None:
    await cluster.add("prefill")
    await cluster.add("decode")
    (key,) = first = await told(cluster, **FORM)
    assert key not in {None, "f" * 16, "127.0.0.1"}
    assert await told(cluster, **FORCED) == await told(cluster, "Bearer any", **FORM) == first
    assert await told(cluster) == {None}, "nothing is compiled for it"


class TestKeys:
    @pytest.fixture
    def settings(self) -> RouterSettings:
        return make_settings(api_keys=("one", "two"))

    async def test_a_client_is_a_key(self, cluster: Cluster) -> None:
        await cluster.add("prefill")
        await cluster.add("decode")
        first, second = await told(cluster, "Bearer one", **FORM), await told(cluster, "Bearer two", **FORM)
        assert len(first | second) == 2
        assert await told(cluster, "bearer   one", n=2, **FORM) == first
