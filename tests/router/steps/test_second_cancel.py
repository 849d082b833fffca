"""A request that is being ended is cancelled once more, as when the router itself ends: its exit is whole."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.steps.failures import ClientGone
from tests.kits.router.cluster import Cluster, chat


@pytest.mark.parametrize("num_turns", [0, 1, 2, 3])
async def test_a_second_cancellation_comes_between_nothing(cluster: Cluster, num_turns: int) -> None:
    """However many turns of the event loop after the first."""
    await cluster.fleet("prefill", "decode")
    (d,) = [worker for worker in cluster.pool if worker.worker_id == "d1"]
    d.usage.limit = 0
    await cluster.open(chat(stream=True))
    await cluster.until_state("held")
    (request,) = cluster.active
    task = request.task
    assert task is not None
    error: ApiError = ClientGone("gone")
    assert request.stop(error)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert cluster.leases.released == ["leasep01"]
    assert len(cluster.active) == 0
    cluster.check_idle()
