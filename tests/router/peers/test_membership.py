"""Who a router is, and what it sees of others."""

from __future__ import annotations

import re

import pytest

from baton_serve.core.protocol.request_ids import new_request_id, new_router_id, owner_of
from tests.kits.router.cluster import Cluster, chat, make_settings


def test_the_id_of_a_request_says_which_router_has_it() -> None:
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
        assert owner_of(answer.headers["x-request-id"]) == cluster.router_id


async def test_without_redis_there_is_no_other_router(cluster: Cluster) -> None:
    peers = cluster.peers
    assert list(peers) == []
    assert await peers.gather("GET", "/internal/requests") == []
    assert await peers.ask("0" * 12, "GET", "/internal/requests") is None


def test_without_a_token_the_internal_port_is_on_loopback() -> None:
    everywhere = {"host": "0.0.0.0", "allow_anonymous": True}
    assert make_settings(**everywhere).bound_internal_host == "127.0.0.1"
    assert make_settings(**everywhere, internal_token="secret").bound_internal_host == "0.0.0.0"
    with pytest.raises(ValueError, match="internal_host is not a loopback address"):
        make_settings(internal_host="0.0.0.0")


def test_other_routers_are_told_an_address_that_they_can_reach() -> None:
    settings = make_settings(advertise_host="router-1", internal_token="secret")
    assert settings.advertised("0.0.0.0") == "router-1"
    assert settings.advertised("127.0.0.1") == "127.0.0.1"
    assert make_settings().advertised("::") not in {"", "::"}


def test_processes_that_share_a_port_do_not_share_the_internal_one() -> None:
    with pytest.raises(ValueError, match="internal_port must be 0"):
        make_settings(processes=2, internal_port=9000)
