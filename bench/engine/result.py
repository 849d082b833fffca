"""The report: a table of cells, and what they say together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean, median

from bench.engine.rounds import BATON, Cell
from bench.report.model import Table
from bench.report.spread import spread

#: Baton's rate over vLLM's, at least: of each cell, and of all of them together.
GOAL = 0.7
GOAL_OF_MEAN = 1.0


def table(cells: Sequence[Cell]) -> Table:
    """A row for each cell."""
    columns = ["model, type, threads", "work", "unit", "Baton", "vLLM", "vLLM is", "Baton / vLLM", f"goal >= {GOAL:g}"]
    return Table("Rates, larger is better", columns, [_row(cell) for cell in cells])


def _row(cell: Cell) -> list[str]:
    other = next((name for name in cell.rates if name != BATON), None)
    rates = [] if other is None else cell.rates[other]
    how = "-" if other is None else other.removeprefix("vllm-")
    return [
        str(cell.setup),
        cell.work.name,
        cell.work.unit,
        spread(cell.rates[BATON]),
        spread(rates),
        how,
        spread(cell.ratios),
        verdict(cell),
    ]


def verdict(cell: Cell) -> str:
    """Whether the median of the ratios reaches the goal."""
    if not cell.ratios:
        return "not measured"
    return "reached" if median(cell.ratios) >= GOAL else "missed"


def summary(cells: Sequence[Cell], num_all: int) -> str:
    """Which part was measured, how many cells reach their goal, and the mean of all."""
    setups = list(dict.fromkeys(str(cell.setup) for cell in cells))
    verdicts = [verdict(cell) for cell in cells]
    measured = f"Measured are {len(setups)} of {num_all} setups: {'; '.join(setups)}."
    if "not measured" in verdicts:
        return f"{measured} vLLM was not measured, because none was given with --vllm: these are Baton's rates only."
    mean = geometric_mean(median(cell.ratios) for cell in cells)
    return (
        f"{measured} {verdicts.count('reached')} of {len(verdicts)} cells reach the goal. The geometric mean of all "
        f"ratios is {mean:.2f}, and is to be {GOAL_OF_MEAN:g}."
    )
