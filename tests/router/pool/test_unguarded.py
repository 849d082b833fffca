"""vLLM servers whose address does not say so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.router.pool import WorkerPool
from baton_serve.router.pool.health import HealthProbes
from tests.kits.router.cluster import eventually
from tests.kits.router.stub_vllm import StubVllm


@pytest_asyncio.fixture
async def server() -> AsyncIterator[StubVllm]:
    made = StubVllm()
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize("one_for_both", [False, True])
async def test_vllm_servers_are_told_apart_from_plain_workers(server: StubVllm, one_for_both: bool) -> None:
    """One that does both legs hands no blocks over, so nothing is wrong with it."""
    pool, upstream = WorkerPool(4), HttpClient(3.0)
    probes = HealthProbes(upstream, pool)
    url = f"http://127.0.0.1:{server.port}"
    (worker,) = pool.add_static([url], [url] if one_for_both else [])
    await eventually(lambda: worker.models is not None)
    await asyncio.sleep(0)
    assert (f"Give it as vllm+{url}." in worker.problem) is not one_for_both
    await probes.close()
    await upstream.close()
