"""A thousand workers and more than a hundred thousand requests, while workers and routers die. Minutes a seed."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from bench.report.model import Plot, Table
from bench.scale.cluster.engines.machine import Size
from bench.scale.cluster.request import End
from bench.scale.faults import kill_routers, kill_workers
from bench.scale.runs import Figures, figures, repeat, run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.scale.cluster.cluster import Cluster
    from bench.scale.runs import Setting

NUM_WORKERS, NUM_ROUTERS = 1_000, 64
#: Engines that decode more at once than the default of this benchmark: else D could not have that many requests.
D = Size(num_blocks=65_536, max_num_seqs=256)
#: Of what the cluster could just serve; more than that, so that requests pile up.
SHARE = 2.2
P_TO_D = 1.8
DEATHS = 10


def ask(setting: Setting) -> tuple[list[Table], list[Plot]]:
    """One size, one load, all kinds of deaths."""
    whole = replace(setting, num_workers=NUM_WORKERS)
    plan = replace(whole.plan(P_TO_D), num_routers=NUM_ROUTERS, d=D, slow_share=0.1)

    def prepare(cluster: Cluster, seed: int) -> None:
        kill_workers(cluster, DEATHS, DEATHS, setting.seconds, seed)
        kill_routers(cluster, DEATHS // 5, setting.seconds, seed)

    def once(_: str, seed: int) -> Mapping[str, float]:
        began_s = time.process_time()
        cluster = run(plan, whole, SHARE * whole.full_rate(plan), seed, lambda cluster: prepare(cluster, seed))
        outcome = cluster.outcome
        return {
            **asdict(figures(cluster, setting.seconds)),
            **{end.value: float(outcome.ends[end]) for end in End},
            "come": float(outcome.num_come),
            "in flight at most": float(outcome.most_in_flight),
            "events": float(cluster.loop.num_events),
            "minutes of CPU": (time.process_time() - began_s) / 60,
        }

    found = repeat(["all"], setting.seeds, once)
    names = ["come", "in flight at most", *(end.value for end in End), *Figures.__dataclass_fields__]
    return [
        Table(
            f"{plan.num_p} P, {plan.num_d} D, {NUM_ROUTERS} routers",
            ["what", "value"],
            [[name.replace("_", " "), found.cell("all", name)] for name in (*names, "events", "minutes of CPU")],
        )
    ], []
