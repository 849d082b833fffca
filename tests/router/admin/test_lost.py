"""A worker that dies is shown everywhere, and not only missing."""

from __future__ import annotations

from typing import Any

from tests.kits.router.cluster import Cluster


async def get(cluster: Cluster, path: str) -> Any:
    answer = await cluster.client.get(path)
    assert answer.status_code == 200
    return answer.json()


async def lose(cluster: Cluster) -> str:
    """Returns the id of a D beside a pair that stays."""
    _, _, dead = await cluster.fleet("prefill", "decode", "decode")
    cluster.workers.remove(dead)
    await dead.stop()
    cluster.announce()
    return dead.name


async def test_a_lost_worker_is_shown_to_all_who_ask(cluster: Cluster) -> None:
    name = await lose(cluster)
    answer = await get(cluster, "/admin/workers")
    assert [one["id"] for one in answer["workers"]] == ["p0", "d1"]
    (lost,) = answer["lost"]
    assert (lost["id"], lost["role"], lost["models"], lost["in_flight"]) == (name, "decode", ["m"], 0)
    ready = await get(cluster, "/ready")
    assert (ready["status"], ready["lost_workers"], ready["workers"]) == ("ok", [name], 2)
    metrics = (await cluster.client.get("/metrics")).text
    assert f'baton_router_worker_up{{role="decode",worker="{name}"}} 0.0' in metrics
    assert 'baton_router_workers_lost_total{role="decode"} 1.0' in metrics
    page = cluster.snapshots().take(0.0)
    assert [(one.id, one.gone_at) for one in page.lost] == [(name, lost["gone_at"])]


async def test_a_worker_that_cannot_be_reached_is_named_as_lost_too(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    (worker,) = (one for one in cluster.pool if one.worker_id == "d1")
    cluster.pool.unreachable(worker)
    assert (await cluster.client.get("/ready")).json()["lost_workers"] == ["d1"]


async def test_an_operator_ends_the_entry_of_a_lost_worker(cluster: Cluster) -> None:
    name = await lose(cluster)
    answer = await cluster.client.delete(f"/admin/workers/{name}")
    assert (answer.status_code, answer.json()) == (200, {"id": name, "unreachable_routers": []})
    assert (await get(cluster, "/admin/workers"))["lost"] == []
    assert (await cluster.client.delete("/admin/workers/d1")).status_code == 409, "it lives"
