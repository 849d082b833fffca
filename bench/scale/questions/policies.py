"""Placement policies against each other."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Literal

from bench.report.model import Plot, Table
from bench.scale.runs import figures, repeat, run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.scale.runs import Setting

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
)
#: Of what the cluster could just serve if P found all they could in their caches.
SHARE = 0.8


def ask(setting: Setting) -> tuple[list[Table], list[Plot]]:
    """Each pair of policies with the same load, through two routers that do not know of each other's choices."""

    def once(pair: Pair, seed: int) -> Mapping[str, float]:
        plan = replace(setting.plan(), pick_prefill=pair[0], pick_decode=pair[1])
        rate = SHARE * setting.full_rate(plan)
        return asdict(figures(run(plan, setting, rate, seed, lambda _: None), setting.seconds))

    found = repeat(PAIRS, setting.seeds, once)
    names = ("first_p50_ms", "first_p99_ms", "second_p99_ms", "kept_share", "hits_p", "hits_d")
    plan = setting.plan()
    table = Table(
        f"Policies at {SHARE:.0%} load: {plan.num_p} P, {plan.num_d} D, {plan.num_routers} routers",
        ["P", "D", "TTFT p50 ms", "TTFT p99 ms", "second token p99 ms", "kept promises", "hits P", "hits D"],
        [[*pair, *(found.cell(pair, name) for name in names)] for pair in PAIRS],
    )
    lines = [
        found.line(label, dict(enumerate(PAIRS, 1)), name)
        for label, name in (("50th percentile", "first_p50_ms"), ("99th percentile", "first_p99_ms"))
    ]
    order = ", ".join(f"{number}: {p}, {d}" for number, (p, d) in enumerate(PAIRS, 1))
    return [table], [Plot("scale-policies", "TTFT by policies of P and D", order, "ms", lines, log_y=True)]
