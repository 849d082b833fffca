"""``python -m bench``: runs the benchmarks one after the other and writes docs/performance.md of what they found.

One that fails is named on the page, and the others go on. The page has the latest report of each, also of those that
are not run this time.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from bench.performance.benchmarks import BENCHMARKS, Benchmark
from bench.performance.drawing import draw
from bench.performance.machine import ROOT
from bench.performance.page import PLOTS, page
from bench.performance.runs import Outcome, outcome, run
from bench.report.arguments import at_least
from bench.report.model import Plot

PLOT_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def main() -> int:
    """Run what was asked for and write the page; 1 if a benchmark failed."""
    given = _parser().parse_args()
    chosen = [] if given.page_only else [one for one in BENCHMARKS if not given.only or one.name in given.only]
    given.reports.mkdir(parents=True, exist_ok=True)
    num_failed = sum(_run_and_say(one, given) for one in chosen)
    outcomes = [outcome(one, given.reports) for one in BENCHMARKS]
    write_page(outcomes, given.page)
    print(f"{given.page} has {sum(one.report is not None for one in outcomes)} of {len(outcomes)} benchmarks")
    return 1 if num_failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = ", ".join(one.name for one in BENCHMARKS)
    parser.add_argument(
        "--only",
        action="append",
        choices=[one.name for one in BENCHMARKS],
        metavar="NAME",
        help=f"run this one; may be given several times; of: {names}",
    )
    parser.add_argument(
        "--runs", type=at_least(1), help="interleaved runs of each (default: its own number, at least five)"
    )
    parser.add_argument(
        "--page-only", action="store_true", help="run nothing, write the page of the reports that exist"
    )
    parser.add_argument("--vllm", help="environment of a vLLM to compare with (default: the one on PATH, if any)")
    folder = ROOT / "docs" / "performance" / "reports"
    parser.add_argument(
        "--reports", type=Path, default=folder, help="folder of the reports (default docs/performance/reports)"
    )
    parser.add_argument(
        "--page", type=Path, default=ROOT / "docs" / "performance.md", help="default docs/performance.md"
    )
    return parser


def _run_and_say(benchmark: Benchmark, given: argparse.Namespace) -> bool:
    """Run a benchmark; returns whether it failed."""
    print(f"{benchmark.module}: {benchmark.measures} ...", flush=True)
    reports: Path = given.reports
    done = run(benchmark, reports.absolute(), given.runs, given.vllm)
    has_failed = done.report is None and not done.lacks
    failed = f"failed, {done.failure}; see {reports / benchmark.name}.log"
    how = failed if has_failed else f"not measured, {done.lacks}" if done.lacks else "done"
    print(f"{benchmark.module}: {how}", flush=True)
    return has_failed


def write_page(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the page, and its plots into the folder beside it, in which nothing else stays.

    Raises ValueError if two plots have one name, or a name is none for a file.
    """
    plots = _plots(outcomes)
    folder = path.parent / PLOTS
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.glob("*.svg"):
        if left_over.stem not in plots:
            left_over.unlink()
    for name, plot in plots.items():
        draw(plot, folder / f"{name}.svg")
    path.write_text(page(outcomes))


def _plots(outcomes: Sequence[Outcome]) -> dict[str, Plot]:
    plots: dict[str, Plot] = {}
    for plot in (plot for one in outcomes if one.report is not None for plot in one.report.plots):
        if plot.name in plots or not PLOT_NAME.fullmatch(plot.name):
            raise ValueError(f"{plot.name!r} is the name of another plot, or none")
        plots[plot.name] = plot
    return plots
