"""Numbers of several runs: values, and comparisons within each run. Pure."""

from __future__ import annotations

from math import isnan
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bench.router.harness.sample import Sample

    Runs = Sequence[Mapping[tuple[str, str], Sample]]
    Of = Callable[[Sample], float]


def values(runs: Runs, router: str, workload: str, of: Of) -> list[float]:
    """A number of each run that has it: NaN is none."""
    return _there(of(run[router, workload]) for run in runs if (router, workload) in run)


def compared(
    runs: Runs, router: str, other: str, workload: str, of: Of, compare: Callable[[float, float], float]
) -> list[float]:
    """A number of each run that compares two routers which took turns in it."""
    return _there(
        compare(of(run[router, workload]), of(run[other, workload]))
        for run in runs
        if (router, workload) in run and (other, workload) in run
    )


def best(runs: Runs, routers: Iterable[str], workload: str, of: Of) -> str | None:
    """The router with the smallest median; None if none of them was measured."""
    medians = {name: median(found) for name in routers if (found := values(runs, name, workload, of))}
    return min(medians, key=medians.__getitem__, default=None)


def _there(found: Iterable[float]) -> list[float]:
    return [value for value in found if not isnan(value)]
