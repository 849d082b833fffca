"""The page of all benchmarks, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from bench.performance.runs import Outcome, RunRecord
from bench.report.model import Report

#: Plots lie beside the page, in a folder of this name.
PLOTS = "performance"
HEAD = """\
# Performance

`make bench` measures all of this and writes this page; [bench/README.md](../bench/README.md) says how to measure parts.
A cell is the median of its runs, with the smallest and the largest in brackets. The runs of what is compared alternate.
Compare numbers of one table only: the speed of a shared machine moves by half within minutes.
"""


def page(outcomes: Sequence[Outcome]) -> str:
    """The whole page: what was measured and what was not, then each benchmark with its tables and plots."""
    parts = [HEAD, *_machines(outcomes), "\n".join(_contents(outcomes))]
    for outcome in outcomes:
        if outcome.report is not None:
            parts += _section(outcome.report, outcome.record)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def anchor(title: str) -> str:
    """What a heading is called in links, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _machines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    names = {outcome.record.machine for outcome in outcomes if outcome.record is not None and outcome.report}
    for name in sorted(names):
        yield f"Machine: {name}."


def _contents(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.lacks:
            yield f"- {outcome.benchmark.measures}: not measured, {outcome.lacks} (`{outcome.benchmark.module}`)"
        elif outcome.report is None:
            failure = outcome.failure.replace("`", "'")
            yield f"- {outcome.benchmark.measures}: no result, `{outcome.benchmark.module}`: `{failure}`"
        else:
            title = outcome.report.title
            yield f"- [{title}](#{anchor(title)}): {outcome.benchmark.measures}"


def _section(report: Report, record: RunRecord | None) -> Iterator[str]:
    yield f"## {report.title}"
    yield from report.about
    yield f"    {report.command}"
    if record is not None:
        yield f"Measured {record.when} at {record.commit}, in {record.seconds:.0f} s."
    for table in report.tables:
        yield table.markdown()
    for plot in report.plots:
        yield f"![{plot.title}]({PLOTS}/{plot.name}.svg)"
