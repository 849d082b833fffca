"""What the number of workers costs a router: the time of its own choices, measured here."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from baton_serve.router.placement import Ahead, Need, Prefilled
from bench.report.model import Plot, Table
from bench.scale.cluster.cluster import Cluster, Plan
from bench.scale.load.job import MODEL
from bench.scale.runs import repeat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.scale.runs import Setting

#: P and D together, as many of one kind as of the other.
NUMBERS = (16, 64, 250, 1_000)
#: Choices that are timed, after as many that are not.
NUM_CHOICES = 60


def ask(setting: Setting) -> tuple[list[Table], list[Plot]]:
    """Time the choice of P and of D, with the default policies."""

    def once(num_workers: int, seed: int) -> Mapping[str, float]:
        return choice_us(setting, num_workers, seed)

    found = repeat(NUMBERS, setting.seeds, once)
    table = Table(
        "CPU of a router for one choice among half of the workers, us",
        ["workers", "P by prefix", "D by affinity"],
        [[str(num), found.cell(num, "p"), found.cell(num, "d")] for num in NUMBERS],
    )
    lines = [
        found.line(label, {float(num): num for num in NUMBERS}, name)
        for label, name in (("P by prefix", "p"), ("D by affinity", "d"))
    ]
    return [table], [Plot("scale-size", "CPU of one choice", "workers", "us", lines, log_x=True, log_y=True)]


def choice_us(setting: Setting, num_workers: int, seed: int) -> dict[str, float]:
    """The median time of a choice of P, and of D."""
    cluster = Cluster(Plan(num_workers // 2, num_workers // 2, num_routers=1), setting.costs, seed)
    times: dict[str, list[float]] = {"p": [], "d": []}
    jobs = [*setting.load.jobs(50.0, 60.0, seed)][: 2 * NUM_CHOICES]
    with cluster.loop:
        cluster.report()
        router = cluster.routers[0]
        pool = router.decides.pool
        for job in jobs:
            request = router.new_request(job, 0)
            need = Need(job.num_tokens, exact=True)
            begin_s = time.perf_counter()
            p = router.pick_p(request, need, MODEL, Ahead())
            middle_s = time.perf_counter()
            if p is None:
                continue
            d = router.pick_d(request, Prefilled(request.prompt, p.worker, job.num_tokens), MODEL, Ahead())
            times["d"].append(time.perf_counter() - middle_s)
            times["p"].append(middle_s - begin_s)
            for one in (p, d):
                if one is not None:
                    pool.leave(one)
    return {kind: 1e6 * median(some[len(some) // 2 :]) for kind, some in times.items()}
