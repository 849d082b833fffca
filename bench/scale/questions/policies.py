"""Placement policies against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from bench.report.model import Plot, Table
from bench.scale.runs import Setting, figures, repeat, run

Pair = tuple[
    Literal["least_loaded", "round_robin", "two_choices", "prefix"],
    Literal["least_loaded", "round_robin", "two_choices", "affinity"],
]
PAIRS: tuple[Pair, ...] = (
    ("round_robin", "round_robin"),
    ("two_choices", "two_choices"),
    ("least_loaded", "least_loaded"),
    ("prefix", "least_loaded"),
    ("prefix", "affinity"),
    ("least_loaded", "affinity"),
)
#: Of what the cluster could just serve if P found all they could in their caches. The larger one is more than P can
#: compute without them.
SHARES = (0.8, 1.0)


def ask(setting: Setting) -> tuple[list[Table], list[Plot]]:
    """Each pair of policies with the same load, through two routers that do not know of each other's choices."""
    plan = setting.plan()

    def once(variant: tuple[Pair, float], seed: int) -> Mapping[str, float]:
        pair, share = variant
        chosen = replace(plan, pick_prefill=pair[0], pick_decode=pair[1])
        cluster = run(chosen, setting, share * setting.full_rate(plan), seed, lambda _: None)
        return figures(cluster)

    found = repeat([(pair, share) for share in SHARES for pair in PAIRS], setting.seeds, once)
    names = ("first_p50_ms", "first_p99_ms", "second_p99_ms", "kept_share", "hits_p", "hits_d")
    tables = [
        Table(
            f"Policies at {share:.0%} load: {plan.num_p} P, {plan.num_d} D, {plan.num_routers} routers",
            ["P", "D", "TTFT p50 ms", "TTFT p99 ms", "second token p99 ms", "kept promises", "hits P", "hits D"],
            [[*pair, *(found.cell((pair, share), name) for name in names)] for pair in PAIRS],
        )
        for share in SHARES
    ]
    return tables, []
