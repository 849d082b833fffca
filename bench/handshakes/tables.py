"""The report of what handshakes cost, and what engines that are gone add to it. Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from bench.report.model import Report, Table
from bench.report.spread import number, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.handshakes.rounds import Result, Runs

    Figure = Callable[[Result], float]


FIRST_P50, FIRST_MAX, GAP, KNOWN_GAP = "first token p50", "first token max", "longest gap", "longest gap, known"
FIGURES: dict[str, Figure] = {
    FIRST_P50: lambda result: median(result.first_token_ms),
    FIRST_MAX: lambda result: max(result.first_token_ms),
    "first token p50, known": lambda result: median(result.known_first_token_ms),
    GAP: lambda result: result.gap_ms,
    KNOWN_GAP: lambda result: result.known_gap_ms,
}

ABOUT = """\
A decode worker meets {} prefill engines at once while a stream runs on it. In every second run two of them are not
well: one never answers, one refuses. First tokens are those of the others; the gap is between tokens of the stream.
`known` is the same again with engines that have been met. Everything shares the cores of one machine and single runs
differ much, so what counts are the ratios of medians."""


def report(runs: Runs, num_engines: int) -> Report:
    """Both kinds of run with their spread, and the ratios that the benchmark is about. There is at least one run."""
    tables = [_times(runs), _ratios(runs)]
    command = "python -m bench.handshakes"
    return Report("Handshakes with engines that are gone", command, [ABOUT.format(num_engines)], tables)


def _times(runs: Runs) -> Table:
    kinds = (("all well", runs.all_well), ("two bad", runs.two_bad))
    rows = [[name, *(spread([of(one) for one in results]) for of in FIGURES.values())] for name, results in kinds]
    return Table("Times of a run, ms", ["engines", *FIGURES], rows)


def _ratios(runs: Runs) -> Table:
    well, bad = runs.all_well, runs.two_bad
    rows = [
        ["first token p50 of the others, two bad to all well", *_ratio(bad, FIRST_P50, well, FIRST_P50)],
        ["first token max of the others, two bad to all well", *_ratio(bad, FIRST_MAX, well, FIRST_MAX)],
        ["longest gap, meeting to known, all well", *_ratio(well, GAP, well, KNOWN_GAP)],
        ["longest gap, meeting to known, two bad", *_ratio(bad, GAP, bad, KNOWN_GAP)],
    ]
    return Table("What it costs: ratios", ["", "of medians", "run by run"], rows)


def _ratio(above: Sequence[Result], upper: str, below: Sequence[Result], lower: str) -> tuple[str, str]:
    """The ratio of the medians, and the spread of the ratios of runs that are neighbours."""
    upper_ms, lower_ms = [FIGURES[upper](one) for one in above], [FIGURES[lower](one) for one in below]
    ratios = [one / other for one, other in zip(upper_ms, lower_ms, strict=True)]
    return number(median(upper_ms) / median(lower_ms)), spread(ratios)
