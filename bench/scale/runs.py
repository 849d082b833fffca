"""Runs of simulated clusters: sized for a load, repeated with several seeds, the variants of each seed one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from bench.report.model import Line
from bench.report.spread import spread
from bench.scale.cluster.cluster import Cluster, Plan
from bench.scale.cluster.outcome import percentile
from bench.scale.costs import Costs
from bench.scale.load.load import Load, seconds_on

VariantT = TypeVar("VariantT")


@dataclass(frozen=True)
class Setting:
    """What all questions are asked about. ``scale``: shortens the runs, for tests."""

    load: Load
    costs: Costs
    seeds: Sequence[int]
    num_workers: int = 48
    scale: float = 1.0

    @property
    def seconds(self) -> float:
        """For how long a run offers the load."""
        return self.load.run_s * self.scale

    def plan(self, p_to_d: float = 1.0) -> Plan:
        """A cluster with at least two of each kind. ``p_to_d`` 1: P and D are enough for about the same load; 2: P are
        enough for twice the load of D.
        """
        num = self.num_workers
        plan = Plan(0, 0)
        on_p, on_d = seconds_on(self.load, self.costs, plan.d.max_num_seqs)
        on_p *= p_to_d
        num_p = min(max(2, round(num * on_p / (on_p + on_d))), num - 2)
        return replace(plan, num_p=num_p, num_d=num - num_p)

    def full_rate(self, plan: Plan) -> float:
        """Requests a second that P and D of this plan could just serve if all came evenly."""
        on_p, on_d = seconds_on(self.load, self.costs, plan.d.max_num_seqs)
        num_d = plan.num_d * (1 - plan.slow_share * (1 - plan.slow_speed))
        return min(plan.num_p / on_p, num_d / on_d)


def run(plan: Plan, setting: Setting, rate: float, seed: int, prepare: Callable[[Cluster], object]) -> Cluster:
    """Offer a load to a cluster that ``prepare`` was called with."""
    cluster = Cluster(plan, setting.costs, seed)
    prepare(cluster)
    cluster.run(setting.load.jobs(rate, setting.seconds, seed))
    return cluster


def figures(cluster: Cluster) -> dict[str, float]:
    """What a cluster that has run came to."""
    outcome = cluster.outcome
    return {
        "first_p50_ms": percentile(outcome.first_s, 0.5) * 1e3,
        "first_p99_ms": percentile(outcome.first_s, 0.99) * 1e3,
        "second_p99_ms": percentile(outcome.second_s, 0.99) * 1e3,
        "kept_share": outcome.num_kept / max(1, outcome.num_come),
        "wasted_share": outcome.num_wasted / max(1, outcome.num_computed),
        "hits_p": outcome.num_found_by_p / max(1, outcome.num_prompt_tokens),
        "hits_d": outcome.num_found_by_d / max(1, outcome.num_prompt_tokens),
    }


@dataclass(frozen=True)
class Repeated(Generic[VariantT]):
    """What each variant came to with each seed."""

    of: Mapping[VariantT, Sequence[Mapping[str, float]]]

    def values(self, variant: VariantT, name: str) -> list[float]:
        """One figure of a variant, by seed."""
        return [one[name] for one in self.of[variant]]

    def cell(self, variant: VariantT, name: str) -> str:
        """The same for a table."""
        return spread(self.values(variant, name))

    def line(self, label: str, variants: Mapping[float, VariantT], name: str) -> Line:
        """The same for a plot, over the x of each variant."""
        return Line.of_runs(label, {x: self.values(variant, name) for x, variant in variants.items()})


def repeat(
    variants: Sequence[VariantT], seeds: Sequence[int], once: Callable[[VariantT, int], Mapping[str, float]]
) -> Repeated[VariantT]:
    """Run every variant with every seed."""
    of: dict[VariantT, list[Mapping[str, float]]] = {variant: [] for variant in variants}
    for seed in seeds:
        for variant in variants:
            of[variant].append(once(variant, seed))
    return Repeated(of)
