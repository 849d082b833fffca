"""docs/metrics.md: every metric that routers and workers export. ``python -m tests.deploy.metrics_page`` prints it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.router.peers.cleanup import Cleanup
from baton_serve.router.pool.breaker import BreakerState
from baton_serve.router.request.states import State
from baton_serve.router.telemetry.metrics.metrics import Metrics, RouterCollector
from baton_serve.router.upstream.internal_calls import InternalCalls
from baton_serve.workers.engine.blocks.block_pool import PoolStats
from baton_serve.workers.engine.counters import Counters, EngineStats
from baton_serve.workers.handshake.peer_view import HandshakeStats
from baton_serve.workers.server.metrics import WorkerMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

#: What a family's samples are called.
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
}


def router_page() -> bytes:
    metrics = Metrics()
    metrics.outcomes["done", ""] += 1
    metrics.aborted_in["held"] += 1
    metrics.refused[429] += 1
    registry = CollectorRegistry()
    states = dict.fromkeys(State, 0)
    some = {"one": 1}
    registry.register(
        RouterCollector(
            metrics,
            lambda: states,
            lambda: some,
            lambda: some,
            lambda: some,
            Cleanup(InternalCalls(HttpClient(1.0)), tuple),
            lambda: [("w", "prefill", 1, True, BreakerState.CLOSED)],
        )
    )
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


def _rows(found: Iterable[Metric]) -> Iterator[str]:
    yield "| metric | kind | says |"
    yield "|---|---|---|"
    for family in sorted(found, key=lambda one: one.name):
        yield f"| `{shown_name(family)}` | {family.type} | {family.documentation} |"


def markdown() -> str:
    """The whole page."""
    return "\n".join(
        [
            "# Metrics",
            "",
            "All that routers and workers export on `/metrics`, from the code: `python -m tests.deploy.metrics_page`",
            "prints this page, and a test compares the two. What to look at first, and why:",
            "[the README](../README.md#what-the-numbers-mean).",
            "",
            "## Routers",
            "",
            *_rows(families(router_page())),
            "",
            "## Workers",
            "",
            *_rows(families(worker_page())),
            "",
        ]
    )


if __name__ == "__main__":
    print(markdown(), end="")
