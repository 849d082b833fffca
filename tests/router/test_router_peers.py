"""Who a router is, and what it sees of others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from router_cluster import chat

from protocol.router import new_request_id, new_router_id, owner_of

if TYPE_CHECKING:
    from router_cluster import Cluster


def test_whose_a_request_is_stands_in_its_id() -> None:
    router_id = new_router_id()
    request_id = new_request_id(router_id)
    assert re.fullmatch(r"[0-9a-f]{12}", router_id)
    assert re.fullmatch(r"[0-9a-f]{32}", request_id)
    assert owner_of(request_id) == router_id
    assert new_request_id(router_id) != request_id


async def test_clients_are_told_ids_that_begin_with_the_routers(cluster: Cluster) -> None:
    await cluster.add("both")
    for body in (chat(), {}):
        answer = await cluster.post(body)
        assert owner_of(answer.headers["x-request-id"]) == cluster.services.router_id


async def test_without_redis_there_is_no_other_router(cluster: Cluster) -> None:
    peers = cluster.services.peers
    assert list(peers) == []
    assert await peers.gather("GET", "/internal/requests") == []
    assert await peers.ask("0" * 12, "GET", "/internal/requests") is None
