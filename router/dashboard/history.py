"""The last ten minutes in steps of two seconds. Pure: time and totals are passed in, no I/O.

The input is totals that only grow (those behind ``/metrics``), so it costs nothing per request or per token: a step is
what was counted since the step before it. A step keeps the counts of its histograms, so that the steps of several
routers can be added; quantiles are computed from the sums (``summary``), assuming that values are spread evenly inside
each bucket. A value above the last bound counts as that bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

STEP_S = 2.0
NUM_STEPS = 300
#: Histograms whose summaries are remembered, since the same ones are shown every half second: more than a history has.
MAX_SUMMARIES = 4096

#: Upper bounds of the histograms' buckets, seconds, by the histogram's name.
Bounds = Mapping[str, tuple[float, ...]]


class HistogramCounts(msgspec.Struct, frozen=True, array_like=True):
    """A histogram at one moment, or of one step: a count per bucket (one more than bounds), and the sum of values."""

    counts: tuple[int, ...]
    sum_s: float = 0.0

    def since(self, before: HistogramCounts) -> HistogramCounts:
        """The histogram of the values counted after ``before``."""
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return HistogramCounts(counts, self.sum_s - before.sum_s)

    def plus(self, other: HistogramCounts) -> HistogramCounts:
        """The sum of the two histograms."""
        return HistogramCounts(tuple(map(int.__add__, self.counts, other.counts)), self.sum_s + other.sum_s)

    @property
    def total(self) -> int:
        """The number of values counted."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Totals:
    """What was counted since the router started. ``times``: histograms by name, always the same names."""

    ended: int
    failed: int
    chunks: int
    times: Mapping[str, HistogramCounts]
    #: Live requests by state, at this moment.
    live: Mapping[str, int]
    #: Requests that were answered with an error before they began.
    refused: int = 0
    #: ``failed`` and ``refused`` by the status of the answer.
    failed_by_status: Mapping[str, int] = field(default_factory=dict)
    refused_by_status: Mapping[str, int] = field(default_factory=dict)


class Step(msgspec.Struct, frozen=True):
    """One step: its events per second, its histograms, and the number of requests live at its end."""

    ended_per_s: float
    failed_per_s: float
    chunks_per_s: float
    live: dict[str, int]
    times: dict[str, HistogramCounts]
    refused_per_s: float = 0.0
    #: ``failed_per_s`` and ``refused_per_s`` by the status of the answer; only statuses that occurred.
    failed_by_status: dict[str, float] = {}
    refused_by_status: dict[str, float] = {}

    def plus(self, other: Step) -> Step:
        """The sum of this step and another router's step at the same time."""
        return Step(
            self.ended_per_s + other.ended_per_s,
            self.failed_per_s + other.failed_per_s,
            self.chunks_per_s + other.chunks_per_s,
            {state: count + other.live.get(state, 0) for state, count in self.live.items()},
            {name: counts.plus(other.times[name]) for name, counts in self.times.items()},
            self.refused_per_s + other.refused_per_s,
            _added(self.failed_by_status, other.failed_by_status),
            _added(self.refused_by_status, other.refused_by_status),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """Quantiles and mean of one step's histogram, in seconds; None: nothing was measured."""

    p50_s: float | None
    p95_s: float | None
    mean_s: float | None


class History:
    """The newest ``num_steps`` steps, oldest first; fewer at the beginning."""

    def __init__(self, now_s: float, totals: Totals, bounds: Bounds, num_steps: int = NUM_STEPS) -> None:
        self.bounds = bounds
        self._until_s = now_s
        self._last = totals
        self._steps: deque[Step] = deque(maxlen=num_steps)
        #: Number of steps so far, including forgotten ones.
        self.num_steps = 0

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    @property
    def next_s(self) -> float:
        """When the next step ends."""
        return self._until_s + STEP_S

    def age_s(self, now_s: float) -> float:
        """Seconds since the newest step ended."""
        return now_s - self._until_s

    def sample(self, now_s: float, totals: Totals) -> int:
        """Close the steps that are over, and return their number: 0 before ``next_s``.

        After a late call, because the process was paused, the counts are spread over the missed steps.
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
    return Step(
        ended_per_s=(after.ended - before.ended) / seconds,
        failed_per_s=(after.failed - before.failed) / seconds,
        chunks_per_s=(after.chunks - before.chunks) / seconds,
        live=dict(after.live),
        times={name: counts.since(before.times[name]) for name, counts in after.times.items()},
        refused_per_s=(after.refused - before.refused) / seconds,
        failed_by_status=_grown(before.failed_by_status, after.failed_by_status, seconds),
        refused_by_status=_grown(before.refused_by_status, after.refused_by_status, seconds),
    )


def _grown(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, float]:
    """The growth of each count per second, without counts that have not grown."""
    grown = {status: count - before.get(status, 0) for status, count in after.items()}
    return {status: count / seconds for status, count in grown.items() if count}


def _added(some: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {status: some.get(status, 0.0) + more.get(status, 0.0) for status in {**some, **more}}


@lru_cache(maxsize=MAX_SUMMARIES)
def summary(counts: HistogramCounts, bounds_s: tuple[float, ...]) -> Summary:
    """The summary of a step's histogram."""
    total = counts.total
    mean_s = counts.sum_s / total if total else None
    return Summary(quantile(counts, bounds_s, 0.5), quantile(counts, bounds_s, 0.95), mean_s)


def quantile(counts: HistogramCounts, bounds_s: Sequence[float], q: float) -> float | None:
    """The value, in seconds, below which the fraction ``q`` of all values lies; None without values."""
    total = counts.total
    if not total:
        return None
    rank = total * q
    low_s = 0.0
    for high_s, count in zip(bounds_s, counts.counts, strict=False):
        if count and rank <= count:
            return min(high_s, low_s + (high_s - low_s) * rank / count)  # which may round to more
        rank -= count
        low_s = high_s
    return low_s
