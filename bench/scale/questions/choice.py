"""When D is chosen: once the blocks exist, as Baton does, or together with P."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bench.report.model import Plot, Table
from bench.scale.faults import kill_workers
from bench.scale.runs import Setting, figures, repeat, run

#: Of what the cluster could just serve.
SHARES = (0.8, 1.0, 1.2, 1.5)
#: D are what is short, else it does not matter when one is chosen.
P_TO_D = 2.5
WHEN = {False: "late", True: "early"}
#: Share of all D that decode at half the speed.
SLOW_SHARE = 0.25
#: Of 16 workers of a kind, this many die in a run.
DEATHS_OF_16 = 1


def ask(setting: Setting) -> tuple[list[Table], list[Plot]]:
    """Both ways at several loads, with slow and dying workers."""
    variants = [(share, early) for share in SHARES for early in WHEN]

    def once(variant: tuple[float, bool], seed: int) -> Mapping[str, float]:
        share, early = variant
        plan = replace(setting.plan(P_TO_D), slow_share=SLOW_SHARE, chooses_early=early)
        deaths = [max(1, num * DEATHS_OF_16 // 16) for num in (plan.num_p, plan.num_d)]
        cluster = run(
            plan,
            setting,
            share * setting.full_rate(plan),
            seed,
            lambda cluster: kill_workers(cluster, deaths[0], deaths[1], setting.seconds, seed),
        )
        return figures(cluster)

    found = repeat(variants, setting.seeds, once)
    plan = setting.plan(P_TO_D)
    names = ("first_p99_ms", "second_p99_ms", "kept_share", "wasted_share")
    table = Table(
        f"When D is chosen: {plan.num_p} P and {plan.num_d} D, a quarter of D at half speed, workers die",
        ["load", "D chosen", "TTFT p99 ms", "second token p99 ms", "kept promises", "wasted prefill"],
        [
            [
                f"{variant[0]:.0%}",
                WHEN[variant[1]],
                *(found.cell(variant, name) for name in names),
            ]
            for variant in variants
        ],
    )
    lines = [
        found.line(f"D chosen {WHEN[early]}", {100 * share: (share, early) for share in SHARES}, "second_p99_ms")
        for early in WHEN
    ]
    plot = Plot(
        "scale-choice",
        "Second token, 99th percentile",
        "load, percent of what the cluster can just serve",
        "ms",
        lines,
        log_y=True,
    )
    return [table], [plot]
