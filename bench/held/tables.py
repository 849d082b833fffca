"""The report of what held requests cost. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from bench.held.scenario import Level, Load, Outcome
from bench.report.model import Line, Plot, Report, Table
from bench.report.spread import spread

#: The goal: the most that the renewal of so many leases takes of a core.
MOST_CORE, AT_HELD = 0.15, 20_000

#: Shares of a core, in percent.
PARTS: dict[str, Callable[[Level], float]] = {
    "renewing threads": lambda level: 100 * level.router.second_threads,
    "router, all threads": lambda level: 100 * level.router.total,
    "Redis": lambda level: 100 * level.redis.total,
}


def report(runs: Sequence[Outcome], load: Load) -> Report:
    """The report of several runs of one load."""
    tables = [_cpu(runs), _lapses(runs, load), _memory(runs)]
    return Report("Held requests", "python -m bench.held", _about(runs, load), tables, [_plot(runs)])


def _about(runs: Sequence[Outcome], load: Load) -> list[str]:
    return [
        f"{load.num_prefill} stub prefill engines grant leases in a real Redis through the store and scripts "
        f"that workers use, and keep them as workers do. {load.num_decode} stub decode engines say that they are full, "
        "so the router holds what was prefilled and renews each lease every 1.5 s. Then a burst comes, then decode "
        "engines open.",
        "CPU is a share of one core, from /proc: of all threads of the router, of those that renew, and of Redis, "
        "which also serves the engines. Two rounds of renewals are one window.",
        f"A process may have too few file descriptors here for one router: it ran as {runs[0].num_processes} processes"
        " (the first of several is their parent). Shares and bytes are sums over them."
        if runs[0].num_processes > 1
        else "The router is one process.",
    ]


def _cells(runs: Sequence[Outcome], of: Callable[[Level], float]) -> list[list[float]]:
    """The values of all runs, level by level."""
    return [[of(level) for level in levels] for levels in zip(*(run.levels for run in runs), strict=True)]


def _cpu(runs: Sequence[Outcome]) -> Table:
    cells = [_cells(runs, of) for of in PARTS.values()]
    rows = []
    for level, renewing, router, redis in zip(runs[0].levels, *cells, strict=True):
        goal = _goal(level.num_held, median(renewing))
        rows.append([str(level.num_held), spread(renewing), goal, spread(router), spread(redis)])
    columns = ["held", "renewing threads", "goal", "router", "Redis"]
    return Table("CPU against held requests, % of a core", columns, rows)


def _goal(num_held: int, percent: float) -> str:
    if num_held < AT_HELD:
        return ""
    return f"{100 * MOST_CORE:.0f}: {'reached' if percent < 100 * MOST_CORE else 'missed'}"


def _lapses(runs: Sequence[Outcome], load: Load) -> Table:
    parts = (
        ("while they were raised", [run.steady for run in runs]),
        (f"burst of {load.num_burst}", [run.burst for run in runs]),
        ("decode engines open", [run.opened for run in runs]),
    )
    rows = [
        [name, spread([one.least_ms for one in seen]), f"{max(one.most_late for one in seen)}", ""]
        for name, seen in parts
    ]
    lapsed, again = sum(run.num_lapsed for run in runs), sum(run.num_prefills - load.num_requests for run in runs)
    rows += [
        ["leases that lapsed, all runs", f"{lapsed}", "", f"0: {'missed' if lapsed else 'reached'}"],
        ["answers that failed, all runs", f"{sum(run.num_failed for run in runs)}", "", "0"],
        ["prefills done twice, all runs", f"{again}", "", "0"],
        ["seconds until the burst had first tokens", spread([run.burst_s for run in runs]), "", ""],
        ["seconds until all were answered", spread([run.drain_s for run in runs]), "", ""],
    ]
    return Table(
        "How close leases of 6 s came to their deadlines, ms",
        ["", "least left of any lease", "with less than 1 s left, at one look", "goal"],
        rows,
    )


def _memory(runs: Sequence[Outcome]) -> Table:
    held = [(run.levels[-1].rss_bytes - run.levels[0].rss_bytes) / run.levels[-1].num_held for run in runs]
    return Table("Memory of the router", ["", ""], [["bytes per held request, prompt of 1 KB", spread(held)]])


def _plot(runs: Sequence[Outcome]) -> Plot:
    held = [float(level.num_held) for level in runs[0].levels]
    lines = [Line.of_runs(label, dict(zip(held, _cells(runs, of), strict=True))) for label, of in PARTS.items()]
    lines.append(Line("goal for renewal", [0.0, float(AT_HELD)], [100 * MOST_CORE] * 2))
    return Plot("held-cpu", "CPU of renewing leases", "held requests", "% of one core", lines)
