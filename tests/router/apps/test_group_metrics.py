"""``/metrics`` of processes that share a port."""

from __future__ import annotations

import asyncio
import os
import signal

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton_serve.router.apps.collector import _histogram
from baton_serve.router.apps.group_metrics import Families, FamilyState, add_up, local_families
from baton_serve.router.telemetry.metrics.buckets import Buckets
from tests.kits.patience import PATIENCE_S
from tests.kits.router.process import RouterProcess


def part(name: str, *samples: tuple[str, dict[str, str], float], kind: str = "counter") -> list[FamilyState]:
    return [FamilyState(name, "Text.", kind, list(samples))]


def test_numbers_of_the_same_labels_are_added() -> None:
    a = part("n", ("n_total", {"x": "1"}, 2), ("n_total", {"x": "2"}, 5))
    b = part("n", ("n_total", {"x": "1"}, 3), ("n_total", {"x": "3"}, 7))
    (metric,) = add_up([a, b])
    assert [(sample.labels["x"], sample.value) for sample in metric.samples] == [("1", 5), ("2", 5), ("3", 7)]
    assert (metric.name, metric.type) == ("n", "counter")


def test_the_metric_of_whether_a_worker_is_up_is_not_added() -> None:
    name = "baton_router_worker_up"
    (metric,) = add_up([part(name, (name, {"worker": "w"}, value), kind="gauge") for value in (0.0, 1.0, 1.0)])
    assert [sample.value for sample in metric.samples] == [1.0]


def test_histograms_stay_histograms() -> None:
    parts = []
    for value in (0.5, 3.0):
        buckets = Buckets((1.0, 2.0))
        buckets.observe(value)
        parts.append(local_families(Families([_histogram("h", "Text.", [], {(): buckets})])))
    (metric,) = add_up(parts)
    assert {(sample.name, sample.labels.get("le")): sample.value for sample in metric.samples} == {
        ("h_bucket", "1.0"): 1,
        ("h_bucket", "2.0"): 1,
        ("h_bucket", "+Inf"): 2,
        ("h_count", None): 2,
        ("h_sum", None): 3.5,
    }


async def refused(client: httpx.AsyncClient, url: str) -> float | None:
    """How many requests were refused as unreadable; None: not told."""
    answer = await client.get(f"{url}/metrics")
    if answer.status_code != 200:
        assert answer.json()["error"]["code"] == "router_unreachable"
        return None
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    samples = families["baton_router_refused"].samples
    return sum(sample.value for sample in samples if sample.labels["status"] == "400")


@pytest.mark.slow
async def test_the_processes_of_a_group_tell_their_sum(redis_url: str) -> None:
    groups = ("abc", "abc", "def")
    routers = await asyncio.gather(*(RouterProcess().start(redis_url=redis_url, group=group) for group in groups))
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client, asyncio.timeout(PATIENCE_S):
        for router in routers:
            assert (await client.post(f"{router.url}/v1/completions", json={})).status_code == 400
        for router, count in zip(routers, (2, 2, 1), strict=True):
            while await refused(client, router.url) != count:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
        os.kill(routers[1].process.pid, signal.SIGSTOP)
        assert await refused(client, routers[0].url) is None, "half a sum is none"
        os.kill(routers[1].process.pid, signal.SIGKILL)
        while await refused(client, routers[0].url) != 1:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.01)
    await asyncio.gather(*(router.stop() for router in routers))
