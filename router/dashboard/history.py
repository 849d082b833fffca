"""The last ten minutes in steps of two seconds. Pure: time and totals are passed in, no I/O.

Fed with totals that only grow (those behind ``/metrics``), so nothing is done per request or per token: a step is what
was counted since the step before it. Quantiles come from the buckets of the histograms, with values taken to be spread
evenly inside each; a value above the last bound counts as that bound.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

STEP_S = 2.0
NUM_STEPS = 300


@dataclass(frozen=True, slots=True)
class Counts:
    """A histogram as it was at one moment: ``counts`` has one more than ``bounds_s``, for the values above."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]

    def since(self, before: Counts) -> Counts:
        """What came after ``before``."""
        return Counts(self.bounds_s, tuple(now - then for now, then in zip(self.counts, before.counts, strict=True)))

    @property
    def total(self) -> int:
        """How many values."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Totals:
    """What was counted since the router began. ``times``: histograms by name; every moment has the same names."""

    ended: int
    failed: int
    chunks: int
    times: Mapping[str, Counts]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds; None where nothing was measured."""

    p50_s: float | None
    p95_s: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """One step: events per second in it, and the quantiles of what was measured in it."""

    ended_per_s: float
    failed_per_s: float
    chunks_per_s: float
    times: Mapping[str, Quantiles]


class History:
    """The newest ``num_steps`` steps, oldest first. Before the first one it is shorter."""

    def __init__(self, now_s: float, totals: Totals, num_steps: int = NUM_STEPS) -> None:
        self._until_s = now_s
        self._last = totals
        self._steps: deque[Step] = deque(maxlen=num_steps)
        #: Steps so far, also those that are forgotten.
        self.num_steps = 0

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    @property
    def next_s(self) -> float:
        """When the next step is over."""
        return self._until_s + STEP_S

    def sample(self, now_s: float, totals: Totals) -> int:
        """Close the steps that are over, and say how many; called before ``next_s`` it does nothing.

        Called late (the process stood still), what came is spread over the missed steps: no gap, and nothing is lost.
        """
        num_over = int((now_s - self._until_s) // STEP_S)
        if num_over < 1:
            return 0
        step = _step(self._last, totals, num_over * STEP_S)
        self._steps.extend([step] * min(num_over, self._steps.maxlen or num_over))
        self.num_steps += num_over
        self._until_s += num_over * STEP_S
        self._last = totals
        return num_over


def _step(before: Totals, after: Totals, seconds: float) -> Step:
    times = {name: counts.since(before.times[name]) for name, counts in after.times.items()}
    return Step(
        ended_per_s=(after.ended - before.ended) / seconds,
        failed_per_s=(after.failed - before.failed) / seconds,
        chunks_per_s=(after.chunks - before.chunks) / seconds,
        times={name: Quantiles(quantile(c, 0.5), quantile(c, 0.95)) for name, c in times.items()},
    )


def quantile(counts: Counts, q: float) -> float | None:
    """Below which a share ``q`` of the values lies, seconds; None without values."""
    rank = counts.total * q
    if not counts.total:
        return None
    low_s = 0.0
    for high_s, count in zip(counts.bounds_s, counts.counts, strict=False):
        if count and rank <= count:
            return low_s + (high_s - low_s) * rank / count
        rank -= count
        low_s = high_s
    return low_s


def column(values: Sequence[float | None], scale: float = 1.0) -> list[float | None]:
    """For a plot: rounded, in other units."""
    return [None if value is None else round(value * scale, 3) for value in values]
