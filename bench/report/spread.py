"""One cell of a table from several runs: the median with the smallest and the largest."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from statistics import median, quantiles


def spread(values: Sequence[float], digits: int = 3) -> str:
    """``median (min to max)`` with as many significant digits; ``-`` without values."""
    if not values:
        return "-"
    if len(values) == 1:
        return number(values[0], digits)
    return f"{number(median(values), digits)} ({number(min(values), digits)} to {number(max(values), digits)})"


def number(value: float, digits: int = 3) -> str:
    """The number with at least that many significant digits, without an exponent: ``1234``, ``56.8``, ``0.123``."""
    if value == 0:
        return "0"
    return f"{value:.{max(0, digits - 1 - floor(log10(abs(value))))}f}"


def quantile(values: Sequence[float], percent: int) -> float:
    """That many percent of the values are not above it; NaN for fewer than two values."""
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else float("nan")
