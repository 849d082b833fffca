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


def first_p50_ms(result: Result) -> float:
    """The median of the first tokens while the worker meets the engines."""
    return median(result.first_token_ms)


def first_max_ms(result: Result) -> float:
    """The slowest of the same."""
    return max(result.first_token_ms)


def known_p50_ms(result: Result) -> float:
    """The median of the first tokens when the worker knows the engines."""
    return median(result.known_first_token_ms)


FIGURES: dict[str, Figure] = {
    "first token p50": first_p50_ms,
    "first token max": first_max_ms,
    "first token p50, known": known_p50_ms,
    "longest gap": lambda result: result.gap_ms,
    "longest gap, known": lambda result: result.known_gap_ms,
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
        ["first token p50 of the others, two bad to all well", *_ratio(bad, first_p50_ms, well, first_p50_ms)],
        ["first token max of the others, two bad to all well", *_ratio(bad, first_max_ms, well, first_max_ms)],
        ["longest gap, meeting to known, all well", *_gap_ratio(well)],
        ["longest gap, meeting to known, two bad", *_gap_ratio(bad)],
    ]
    return Table("What it costs: ratios", ["", "of medians", "run by run"], rows)


def _gap_ratio(results: Sequence[Result]) -> tuple[str, str]:
    return _ratio(results, FIGURES["longest gap"], results, FIGURES["longest gap, known"])


def _ratio(above: Sequence[Result], of: Figure, below: Sequence[Result], to: Figure) -> tuple[str, str]:
    """The ratio of the medians, and the spread of the ratios of runs that are neighbours."""
    ratios = [of(one) / to(other) for one, other in zip(above, below, strict=True)]
    return number(median(map(of, above)) / median(map(to, below))), spread(ratios)
