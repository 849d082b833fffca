"""Keeps the history of one router, also while no page is watching."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from baton_serve.router.dashboard.history import STEP_S, Bounds, HistogramCounts, History, Totals
from baton_serve.router.parts import Requests
from baton_serve.router.request.states import State
from baton_serve.router.telemetry.metrics.buckets import Buckets
from baton_serve.router.telemetry.metrics.metrics import Metrics

#: Names of histograms in ``Totals.times``, in addition to those of the phases, which are named after the states.
TTFT, ITL = "ttft", "itl"


def read_totals(requests: Requests) -> Totals:
    """The counters of ``/metrics`` as they are now."""
    metrics = requests.metrics
    outcomes = metrics.outcomes
    times = {name: HistogramCounts(tuple(b.counts), b.total) for name, b in _histograms(metrics).items()}
    return Totals(
        ended=sum(outcomes.values()),
        failed=sum(count for (outcome, _), count in outcomes.items() if outcome == State.FAILED),
        chunks=times[ITL].total,
        times=times,
        live={str(state): count for state, count in requests.active.count().items()},
        refused=metrics.refused.total(),
        failed_by_status=_by_status(metrics.failed),
        refused_by_status=_by_status(metrics.refused),
    )


def _by_status(counts: Counter[int]) -> dict[str, int]:
    return {str(status): count for status, count in counts.items()}


def bounds_of(metrics: Metrics) -> Bounds:
    """The bounds of the histograms in ``read_totals``."""
    return {name: buckets.bounds for name, buckets in _histograms(metrics).items()}


def _histograms(metrics: Metrics) -> dict[str, Buckets]:
    phases = {str(state): buckets for state, buckets in metrics.phases.items()}
    return {TTFT: metrics.ttft, ITL: metrics.itl, **phases}


log = logging.getLogger("baton.router")


class HistoryRecorder:
    """Closes the steps of ``history`` as they end, for as long as the loop runs. Needs a running loop."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._loop = asyncio.get_running_loop()
        self.history = History(self._loop.time(), read_totals(requests), bounds_of(requests.metrics))
        self._wake()

    @property
    def now_s(self) -> float:
        """The present time on the clock of the history."""
        return self._loop.time()

    def _wake(self) -> None:
        now_s = self._loop.time()
        try:
            self.history.sample(now_s, read_totals(self._requests))
        except Exception:
            log.exception("a step of the dashboard's history is missing")
            self._loop.call_at(now_s + STEP_S, self._wake)  # the history still waits for the same step
        else:
            self._loop.call_at(self.history.next_s, self._wake)
