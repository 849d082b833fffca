"""``/metrics`` of a port that several router processes share: the process that answers returns the sum over all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter, Response
from prometheus_client.metrics_core import Metric

from baton_serve.core.protocol.errors import UnavailableError
from baton_serve.router.peers.asking import ask_some
from baton_serve.router.request.states import State
from baton_serve.router.telemetry.metrics.metrics import RouterCollector
from baton_serve.router.telemetry.metrics.vllm_names import LiveRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from baton_serve.router.parts import Leases, Requests, Workers
    from baton_serve.router.peers.cleanup import Cleanup
    from baton_serve.router.peers.port import PeerRouters
    from baton_serve.router.pool import WorkerPool
    from baton_serve.router.pool.breaker import BreakerState

#: Each process's own view of the workers: a sum would mean nothing, so the highest value is taken.
_OPINIONS = frozenset({"baton_router_worker_up", "baton_router_worker_breaker", "baton_router_workers_lost"})


class SampleState(msgspec.Struct, array_like=True, frozen=True):
    """One Prometheus sample of one process."""

    name: str
    labels: dict[str, str]
    value: float


class FamilyState(msgspec.Struct, frozen=True):
    """All samples of one metric of one process."""

    name: str
    documentation: str
    type: str
    samples: list[SampleState]


#: The states in which a request waits for a worker.
_WAITING = frozenset({State.QUEUED, State.HELD})


@dataclass
class Families:
    """Metrics in the form that prometheus_client's ``generate_latest`` accepts."""

    metrics: list[Metric]

    def collect(self) -> Iterable[Metric]:
        """All families."""
        return self.metrics


def process_collector(
    workers: Workers, requests: Requests, leases: Leases, vllm_leases: Callable[[], Mapping[str, int]], cleanup: Cleanup
) -> RouterCollector:
    """All metrics of this process, read when they are collected. ``vllm_leases``: counters of vLLM's leases."""
    return RouterCollector(
        requests.metrics,
        requests.active.count,
        leases.renewer.counters,
        vllm_leases,
        lambda: leases.prefill_aborts.outcomes,
        cleanup,
        lambda: _workers(workers.pool),
        lambda: _live(requests, workers.pool),
        workers.lost.all,
    )


def local_families(collector: RouterCollector) -> list[FamilyState]:
    """All metrics of this process."""
    return [
        FamilyState(
            metric.name,
            metric.documentation,
            metric.type,
            [SampleState(sample.name, sample.labels, sample.value) for sample in metric.samples],
        )
        for metric in collector.collect()
    ]


async def group_families(collector: RouterCollector, peers: PeerRouters) -> Families:
    """The sum over the processes of this router's group.

    Raises UnavailableError if one of them does not answer: a sum without it would look as if counters had been reset.
    """
    group = peers.record.group
    ids = [record.router_id for record in peers if group and record.group == group]
    heard = await ask_some(peers, ids, list[FamilyState], "/internal/metrics-state")
    if heard.errors:
        router_id, error = next(iter(heard.errors.items()))
        raise UnavailableError(
            f"Router {router_id}, which shares this port, did not tell its numbers: {error}.",
            code="router_unreachable",
        )
    return Families(add_up([local_families(collector), *heard.answers.values()]))


def add_up(parts: Iterable[Iterable[FamilyState]]) -> list[Metric]:
    """One family per name: values with the same labels are added. The order is that of the first process."""
    families: dict[str, FamilyState] = {}
    sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for part in parts:
        for family in part:
            families.setdefault(family.name, family)
            known = sums.setdefault(family.name, {})
            for sample in family.samples:
                key = sample.name, tuple(sample.labels.items())
                if key not in known:
                    known[key] = sample.value
                elif family.name in _OPINIONS:
                    known[key] = max(known[key], sample.value)
                else:
                    known[key] += sample.value
    return [_metric(family, sums[name]) for name, family in families.items()]


def _metric(family: FamilyState, values: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> Metric:
    metric = Metric(family.name, family.documentation, family.type)
    for (name, labels), value in values.items():
        metric.add_sample(name, dict(labels), value)
    return metric


def metrics_state_routes(collector: RouterCollector) -> APIRouter:
    """``/metrics-state`` under ``/internal``: this process's part of the sum."""
    api = APIRouter()

    @api.get("/metrics-state")
    async def metrics_state() -> Response:
        """All metrics of this process."""
        return Response(msgspec.json.encode(local_families(collector)), media_type="application/json")

    return api


def _live(requests: Requests, pool: WorkerPool) -> dict[str, LiveRequests]:
    """The live requests of each model, also of those that have none. Each choice counts, as with vLLM."""
    live = [one for one in requests.active.exchanges() if not one.progress.over]
    label = requests.metrics.models.of
    models = set(map(label, pool.models()))
    waiting = Counter(label(one.asked.model) for one in live if one.progress.state in _WAITING)
    all_of = Counter(label(one.asked.model) for one in live)
    models |= all_of.keys()
    return {model: LiveRequests(all_of[model] - waiting[model], waiting[model]) for model in sorted(models)}


def _workers(pool: WorkerPool) -> Iterable[tuple[str, str, int, bool, BreakerState]]:
    for worker in pool:
        yield (
            worker.worker_id,
            str(worker.role),
            worker.usage.in_flight,
            worker.standing.healthy,
            worker.standing.breaker.state,
        )
