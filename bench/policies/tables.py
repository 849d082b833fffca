"""The report of how placement policies did on real workers. Pure."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from bench.report.model import Line, Plot, Report, Table
from bench.report.spread import spread

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping, Sequence

    from bench.policies.rounds import PolicyResult

    Rows = Mapping[tuple[str, str], Sequence[PolicyResult]]

FIGURES: dict[str, Callable[[PolicyResult], float]] = {
    "TTFT p50 ms": lambda one: one.ttft_p50_ms,
    "TTFT p99 ms": lambda one: one.ttft_p99_ms,
    "hits P %": lambda one: 100 * one.hits_prefill,
    "hits D %": lambda one: 100 * one.hits_decode,
    "requests/s": lambda one: one.requests_per_s,
}
ABOUT = """\
Two prefill and two decode workers of the demo model on a CPU, and a router of its own for each run. Conversations begin
with one of eight system prompts and come in bursts. Hits are tokens found in the prefix cache, of all that were looked
for there. A run has some tens of requests, so its TTFT p99 is about its slowest answer. `failed` is of all runs."""


def report(rows: Rows, given: Namespace) -> Report:
    """The table, and a plot of TTFT. ``given`` has ``runs``, ``seconds``, ``rate`` and ``seed`` of the command."""
    seeds = f"seeds {given.seed} to {given.seed + given.runs - 1}"
    load = f"{given.rate:g} conversations/s between bursts, for {given.seconds:g} s; {seeds}"
    return Report(
        "Placement policies on real workers", "python -m bench.policies", [ABOUT], [_table(load, rows)], [_plot(rows)]
    )


def _table(title: str, rows: Rows) -> Table:
    cells = [
        [*pair, *(spread(_values(some, of)) for of in FIGURES.values()), f"{sum(one.num_failed for one in some)}"]
        for pair, some in rows.items()
    ]
    return Table(title, ["prefill", "decode", *FIGURES, "failed"], cells)


def _values(results: Sequence[PolicyResult], of: Callable[[PolicyResult], float]) -> list[float]:
    """A figure of the runs that have it: a run whose requests all failed has no TTFT and no hits."""
    return [value for value in map(of, results) if isfinite(value)]


def _plot(rows: Rows) -> Plot:
    order = ", ".join(f"{number}: {p}, {d}" for number, (p, d) in enumerate(rows, 1))
    lines = [_line(name, rows) for name in ("TTFT p50 ms", "TTFT p99 ms")]
    return Plot("placement-real", "TTFT by policies of P and D", order, "ms", lines, log_y=True)


def _line(name: str, rows: Rows) -> Line:
    """A figure over the numbers of the pairs, without pairs that have no value."""
    values = {number: _values(some, FIGURES[name]) for number, some in enumerate(rows.values(), 1)}
    return Line.of_runs(name.removesuffix(" ms"), {float(number): some for number, some in values.items() if some})
