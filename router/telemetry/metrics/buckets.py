"""A histogram that is cheap to count in."""

from __future__ import annotations

from itertools import accumulate


class Buckets:
    """A histogram: counts per bucket, and the sum of values (``total``)."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        bounds = self.bounds
        low, high = 0, len(bounds)
        while low < high:  # what bisect_left does, which compiled code would have to call with objects
            middle = (low + high) // 2
            if bounds[middle] < value:
                low = middle + 1
            else:
                high = middle
        self.counts[low] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' rows: (upper bound, number of values up to that bound)."""
        return list(zip((*map(str, self.bounds), "+Inf"), accumulate(self.counts), strict=True))
