"""How the router tells workers which requests for forms are of one client."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.core.protocol.client_key import HEADER, client_in, client_key, network_of
from baton_serve.core.protocol.token_keys import announcement_key, clients_key
from tests.kits.router.cluster import Cluster, chat

FORM = {"response_format": {"type": "json_object"}}
FORCED = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": "required",
}


async def told(cluster: Cluster, authorization: str = "", **more: Any) -> set[str | None]:
    """What both workers are told of the request's client."""
    headers = {"authorization": authorization} if authorization else {}
    return await told_of(cluster, "/v1/chat/completions", chat(**more), headers)


async def told_of(cluster: Cluster, path: str, body: dict[str, Any], headers: dict[str, str]) -> set[str | None]:
    answer = await cluster.post(body, path, headers={HEADER: "f" * 16, **headers})
    assert answer.status_code == 200, answer.text
    return {worker.headers[-1].get(HEADER) for worker in cluster.workers}


async def test_without_keys_a_client_is_an_address(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    (key,) = first = await told(cluster, **FORM)
    assert key not in {None, "f" * 16, "127.0.0.1"}
    assert await told(cluster, **FORCED) == await told(cluster, "Bearer any", **FORM) == first
    assert await told(cluster) == {None}, "nothing is compiled for it"


@pytest.mark.settings(api_keys=("one", "two"))
class TestKeys:
    async def test_a_client_is_a_key(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        first, second = await told(cluster, "Bearer one", **FORM), await told(cluster, "Bearer two", **FORM)
        assert len(first | second) == 2
        assert await told(cluster, "bearer   one", n=2, **FORM) == first

    async def test_anthropics_clients_send_theirs_elsewhere(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        tool = {"name": "f", "input_schema": {"type": "object"}}
        body = {
            "model": "m",
            "max_tokens": 4,
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [tool],
            "tool_choice": {"type": "any"},
        }
        one = await told_of(cluster, "/v1/messages", body, {"x-api-key": "one"})
        assert one == await told(cluster, "Bearer one", **FORM)
        assert one != await told_of(cluster, "/v1/messages", body, {"x-api-key": "two"})


def test_no_client_learns_another_key_of_the_token() -> None:
    """A client that is called as the use of one of these keys."""
    assert not announcement_key("t").hex().startswith(client_key(clients_key("t"), b"baton announcement 1"))


def test_a_key_needs_the_secret() -> None:
    assert client_key(b"s", b"one") != client_key(b"t", b"one")
    assert client_in(client_key(b"s", b"one").encode()) == client_key(b"s", b"one")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::1", True),
    ],
)
def test_addresses_of_one_machine_are_of_one_network(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same
