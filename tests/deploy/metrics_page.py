"""docs/metrics.md: every metric that routers and workers export. ``python -m tests.deploy.metrics_page`` prints it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.workers.engine.blocks.block_pool import PoolStats
from baton_serve.workers.engine.counters import Counters, EngineStats
from baton_serve.workers.handshake.peer_view import HandshakeStats
from baton_serve.workers.server.metrics import WorkerMetrics
from tests.kits.router.cluster import Cluster, make_settings

#: What a family's samples are called.
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
}


def router_page() -> bytes:
    return asyncio.run(_router_page())


async def _router_page() -> bytes:
    cluster = Cluster(make_settings())
    cluster.pool.add_static(["http://w"], [])
    cluster.metrics.outcomes["done", ""] += 1
    cluster.metrics.aborted_in["held"] += 1
    cluster.metrics.refused[429] += 1
    registry = CollectorRegistry()
    registry.register(cluster.numbers)
    return generate_latest(registry)


def worker_page() -> bytes:
    pool = PoolStats(total=1, free=1, cached=0, pinned=0, leased=0, leases=0)
    stats = EngineStats(Counters(reads=Counter(done=1)), pool, WorkerLoad())
    handshakes = HandshakeStats(states={"connected": 1}, failures={"timeout": 1})
    return WorkerMetrics(lambda: stats, lambda: {"done": 1}, lambda: handshakes).render()


def families(page: bytes) -> Iterator[Metric]:
    """The metrics of a page, without the times at which counters began."""
    for family in text_string_to_metric_families(page.decode()):
        if not family.name.endswith("_created"):
            yield family


def shown_name(family: Metric) -> str:
    """As it is to be asked for."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _table(found: Iterable[Metric]) -> str:
    rows = [
        f"| `{shown_name(one)}` | {one.type} | {one.documentation} |" for one in sorted(found, key=lambda one: one.name)
    ]
    return "\n".join(["| metric | kind | says |", "|---|---|---|", *rows])


def markdown() -> str:
    """The whole page."""
    return f"""\
# Metrics

All that routers and workers export on `/metrics`, from the code: `python -m tests.deploy.metrics_page`
prints this page, and a test compares the two. What to look at first, and why:
[the README](../README.md#what-the-numbers-mean).

## Routers

{_table(families(router_page()))}

## Workers

{_table(families(worker_page()))}
"""


if __name__ == "__main__":
    print(markdown(), end="")
