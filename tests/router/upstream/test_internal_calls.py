"""A worker dies and somebody binds its port: calls to internal ports do not show them the token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from baton_serve.core.protocol.hello import worker_proof
from baton_serve.core.protocol.token_keys import hello_key
from tests.kits.router.cluster import Cluster
from tests.kits.router.stranger import Stranger

TOKEN = "s3cret-internal"
pytestmark = pytest.mark.settings(internal_token=TOKEN)


@pytest.fixture
async def taker(cluster: Cluster) -> AsyncIterator[Stranger]:
    """Has the port of the only worker."""
    p = await cluster.add("prefill")
    await p.stop()
    ok = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
    async with Stranger(ok, p.port) as made:
        yield made


async def test_a_drain_does_not_show_the_token_to_whoever_took_the_port(cluster: Cluster, taker: Stranger) -> None:
    answer = await cluster.client.post("/admin/workers/p0/drain")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_unreachable")
    assert "did not prove that it knows the internal token" in answer.json()["error"]["message"]
    assert b"/internal/hello/" in taker.heard and TOKEN.encode() not in taker.heard


async def test_a_cleanup_does_not_show_the_token_to_whoever_took_the_port(
    cluster: Cluster, taker: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.cleanup.start("0123456789ab")
    await cluster.cleanup.close()
    assert cluster.cleanup.outcomes == {"told": 0, "not_told": 1}
    assert "not told: p0 (it did not prove that it knows the internal token)" in caplog.text
    assert b"/internal/hello/" in taker.heard and TOKEN.encode() not in taker.heard


async def test_an_abort_of_a_prefill_does_not_show_the_token_to_whoever_took_the_port(
    cluster: Cluster, taker: Stranger
) -> None:
    (worker,) = cluster.pool
    cluster.prefill_aborts.start(worker, "some-1")
    await cluster.prefill_aborts.close()
    assert cluster.prefill_aborts.outcomes["failed"] == 1
    assert b"/internal/hello/" in taker.heard and TOKEN.encode() not in taker.heard


async def test_a_worker_that_proves_itself_is_shown_the_token(cluster: Cluster) -> None:
    p = await cluster.add("prefill")
    p.prove = partial(worker_proof, hello_key(TOKEN), cluster._status(p).record)
    (worker,) = cluster.pool
    assert await cluster.internal_calls.post(worker, "/internal/abort/some-1", 5.0) == (200, b'{"aborted": false}')
    assert p.abort_headers[0]["authorization"] == f"Bearer {TOKEN}"
