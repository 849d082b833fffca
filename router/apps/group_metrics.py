"""``/metrics`` of a port that several router processes share: the process that answers returns the sum over all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from baton_serve.core.protocol.errors import UnavailableError
from baton_serve.router.peers.asking import ask_some
from baton_serve.router.peers.port import PeerRouters

#: Each process's own view of the workers: a sum would mean nothing, so the highest value is taken.
_OPINIONS = frozenset({"baton_router_worker_up", "baton_router_worker_breaker", "baton_router_workers_lost"})


class FamilyState(msgspec.Struct, frozen=True):
    """All samples of one metric of one process: of each its name, its labels and its value."""

    name: str
    documentation: str
    type: str
    samples: list[tuple[str, dict[str, str], float]]


@dataclass
class Families:
    """Metrics in the form that prometheus_client's ``generate_latest`` accepts."""

    metrics: list[Metric]

    def collect(self) -> Iterable[Metric]:
        """All families."""
        return self.metrics


def local_families(collector: Collector) -> list[FamilyState]:
    """All metrics of this process."""
    return [
        FamilyState(
            metric.name,
            metric.documentation,
            metric.type,
            [(sample.name, sample.labels, sample.value) for sample in metric.samples],
        )
        for metric in collector.collect()
    ]


async def group_families(collector: Collector, peers: PeerRouters) -> Families:
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
    """One family per name: values with the same labels are added. The first process gives the order."""
    families: dict[str, FamilyState] = {}
    sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for part in parts:
        for family in part:
            families.setdefault(family.name, family)
            known = sums.setdefault(family.name, {})
            for name, labels, value in family.samples:
                key = name, tuple(labels.items())
                if key not in known:
                    known[key] = value
                elif family.name in _OPINIONS:
                    known[key] = max(known[key], value)
                else:
                    known[key] += value
    return [_metric(family, sums[name]) for name, family in families.items()]


def _metric(family: FamilyState, values: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> Metric:
    metric = Metric(family.name, family.documentation, family.type)
    for (name, labels), value in values.items():
        metric.add_sample(name, dict(labels), value)
    return metric
