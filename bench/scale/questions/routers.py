"""How many routers a load needs: each is one core, and sees only its own requests between two reports of workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from bench.report.model import Plot, Table
from bench.report.spread import number
from bench.scale.cluster.cluster import Cluster
from bench.scale.runs import Setting, figures, repeat, run

NUMBERS = (1, 2, 3, 4, 8, 16)
SHARE = 0.8
NUM_WORKERS = (50, 100, 200, 500, 1_000, 2_000, 4_000)
MOST_BUSY = 0.7


def ask(setting: Setting) -> tuple[list[Table], list[Plot]]:
    """The same load through more and more routers."""
    plan = setting.plan()
    rate = SHARE * setting.full_rate(plan)

    def once(num_routers: int, seed: int) -> Mapping[str, float]:
        busiest: list[float] = [0.0]

        def look(cluster: Cluster) -> None:
            busiest.append(max(router.cpu.share for router in cluster.routers))
            if cluster.loop.now_s < setting.seconds:
                cluster.loop.call_later(1.0, look, cluster)

        cluster = run(
            replace(plan, num_routers=num_routers),
            setting,
            rate,
            seed,
            lambda cluster: cluster.loop.call_later(1.0, look, cluster),
        )
        busy = rate * setting.costs.router_request_s / num_routers + max(busiest)
        return {**figures(cluster), "busy": busy}

    found = repeat(NUMBERS, setting.seeds, once)
    table = Table(
        f"Routers of one core for {rate:.0f} requests/s, {rate * setting.load.mean_new:.0f} tokens/s",
        ["routers", "busy at most", "TTFT p50 ms", "TTFT p99 ms", "kept promises", "hits P"],
        [
            [str(num), *(found.cell(num, name) for name in ("busy", "first_p50_ms", "first_p99_ms"))]
            + [found.cell(num, name) for name in ("kept_share", "hits_p")]
            for num in NUMBERS
        ],
    )
    lines = [
        found.line(label, {float(num): num for num in NUMBERS}, name)
        for label, name in (("50th percentile", "first_p50_ms"), ("99th percentile", "first_p99_ms"))
    ]
    plot = Plot("scale-routers", "TTFT by the number of routers", "routers", "ms", lines, log_x=True, log_y=True)
    return [table, needed(setting)], [plot]


def needed(setting: Setting) -> Table:
    """How many routers keep below ``MOST_BUSY``, by arithmetic: what each costs for any number of workers is known."""
    costs, load = setting.costs, setting.load
    plan = setting.plan()
    each = SHARE * setting.full_rate(plan) / setting.num_workers
    rows = []
    for num in NUM_WORKERS:
        rate, reports = each * num, costs.reports_share(num)
        work = rate * (costs.router_request_s + load.mean_new * costs.router_token_s)
        needed = str(ceil(work / (MOST_BUSY - reports))) if reports < MOST_BUSY else "no number is enough"
        rows.append([str(num), number(rate), number(rate * load.mean_new), needed, f"{reports:.0%}"])
    return Table(
        f"Routers of one core that are busy for at most {MOST_BUSY:.0%}, all of which know all workers",
        ["workers", "requests/s", "tokens/s", "routers", "of each core, reports of workers"],
        rows,
    )
