"""``kv_transfer_params`` of a client reach no worker: they would make it read memory that the client names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.router.cluster import Cluster, body_for

PATHS = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
EVIL: dict[str, Any] = {"do_remote_prefill": True, "remote_host": "evil", "remote_port": 1}


@PATHS
@pytest.mark.parametrize("stream", [False, True])
async def test_kv_transfer_params_of_a_client_reach_no_worker_that_does_both(
    cluster: Cluster, path: str, stream: bool
) -> None:
    """It gets the body in one leg, with no parameters of P that would replace the client's."""
    both = await cluster.add("both")
    response = await cluster.post(body_for(path, stream=stream, kv_transfer_params=EVIL), path)
    assert response.status_code == 200
    assert "kv_transfer_params" not in both.bodies[0]


@PATHS
async def test_kv_transfer_params_of_a_client_reach_neither_p_nor_d(cluster: Cluster, path: str) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    for max_tokens in (4, 1):  # one token needs no hand-off
        asked = body_for(path, max_tokens=max_tokens, kv_transfer_params=EVIL)
        assert (await cluster.post(asked, path)).status_code == 200
    assert [body.get("kv_transfer_params") for body in p.bodies] == [{"do_remote_decode": True}, None]
    assert [body["kv_transfer_params"].get("remote_host") for body in d.bodies] != ["evil"]
