"""The tables: a row for each number, a column for each router. Pure."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from bench.report.model import Table
from bench.report.spread import number, spread
from bench.router.result.goals import GOALS, PEERS
from bench.router.result.numbers import best, compared, values
from bench.router.workloads import WORKLOADS

if TYPE_CHECKING:
    from bench.router.result.numbers import Of, Runs


@dataclass(frozen=True)
class Row:
    """A number of a workload."""

    workload: str
    what: str
    of: Of


def cpu_of(workload: str) -> Of:
    """CPU time for what the workload is counted by."""
    return attrgetter(f"cpu_us_per_{WORKLOADS[workload].per}")


CPU = tuple(
    row
    for name, workload in WORKLOADS.items()
    for row in (
        Row(name, f"us per {workload.per}", cpu_of(name)),
        *((Row(name, "tokens in a chunk", attrgetter("tokens_per_chunk")),) if workload.stream else ()),
    )
    if name != "O"
)
LATENCY = (
    *(
        row
        for name in ("C", "C512")
        for row in (
            Row(name, "TTFT p50", attrgetter("ttft_p50_ms")),
            Row(name, "TTFT p99", attrgetter("ttft_p99_ms")),
            Row(name, "ITL p99", attrgetter("itl_p99_ms")),
        )
    ),
    Row("O", "added TTFT p50", attrgetter("added_p50_ms")),
    Row("O", "added TTFT p99", attrgetter("added_p99_ms")),
    Row("O", "ITL p99", attrgetter("itl_p99_ms")),
)
RATE = (
    Row("A", "requests/s", attrgetter("requests_per_s")),
    Row("D", "requests/s", attrgetter("requests_per_s")),
    Row("B", "tokens/s", attrgetter("tokens_per_s")),
)
SHARE = tuple(
    Row(name, "part of the core of load and engines", attrgetter("harness_share")) for name in ("A", "B", "D")
)


def table(title: str, rows: Sequence[Row], runs: Runs, routers: Sequence[str]) -> Table:
    """The rows of the workloads that were measured."""
    cells = [[values(runs, name, row.workload, row.of) for name in routers] for row in rows]
    return Table(
        title,
        ["", *routers],
        [
            [f"{row.workload}: {row.what}", *map(spread, found)]
            for row, found in zip(rows, cells, strict=True)
            if any(found)
        ],
    )


def ratios(runs: Runs, routers: Sequence[str]) -> Table:
    """CPU time of each router that is none of the others, beside the best peer and each other, within each run."""
    others = ("nginx", *PEERS)
    measured = [name for name in routers if name not in others]
    rows = []
    for workload in dict.fromkeys(row.workload for row in CPU):
        of = cpu_of(workload)
        for router in measured:
            first = best(runs, PEERS, workload, of)
            found = [compared(runs, router, other, workload, of, operator.truediv) for other in (first or "", *others)]
            if values(runs, router, workload, of) and any(found):
                title = f"{workload}: us per {WORKLOADS[workload].per}, {router}"
                rows.append([title, f"{spread(found[0])} {first or ''}".strip(), *map(spread, found[1:])])
    return Table("CPU time, divided by that of others", ["", "the best peer", *others], rows)


def goals(runs: Runs, batons: Sequence[str]) -> Table:
    """What was to be reached, of what was measured."""
    measured = {workload for run in runs for _, workload in run}
    rows = [goal.row(runs, baton) for goal in GOALS if goal.workload in measured for baton in batons]
    return Table("Goals", ["", "router", "beside", "found", "goal", "reached"], rows)


def flows(runs: Runs, routers: Sequence[str]) -> Table:
    """Questions to engines for each request, failed requests and memory, of all windows together."""
    rows = []
    for name in routers:
        samples = [sample for run in runs for (router, _), sample in run.items() if router == name]
        if samples:
            legs = [number(sum(each) / len(samples)) for each in zip(*(one.legs for one in samples), strict=True)]
            failed = sum(one.failed for one in samples)
            rows.append([name, *legs, str(failed), number(max(one.rss_mib for one in samples))])
    columns = ["", "to P", "to D with blocks", "to D without", "both at once", "failed requests", "memory at most, MiB"]
    return Table("Questions to engines for each request, and failures", columns, rows)
