"""The history of the dashboard: pure, so all of it is tried with made-up times and counts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from baton_serve.router.dashboard.history import STEP_S, HistogramCounts, History, Totals, quantile, summary
from baton_serve.router.telemetry.metrics.buckets import Buckets

BOUNDS_S = (0.1, 1.0, 10.0)
BOUNDS = {"t": BOUNDS_S}
NONE_YET = Totals(0, 0, 0, {"t": HistogramCounts((0, 0, 0, 0))}, {"held": 0})

waits_s = st.floats(0, 3 * STEP_S)
growth = st.tuples(waits_s, st.integers(0, 9), st.integers(0, 9), st.integers(0, 3))


def grown(totals: Totals, ended: int, chunks: int, bucket: int) -> Totals:
    counts = list(totals.times["t"].counts)
    counts[bucket] += chunks
    return Totals(totals.ended + ended, 0, totals.chunks + chunks, {"t": HistogramCounts(tuple(counts))}, totals.live)


@given(st.lists(growth, max_size=40))
def test_no_event_is_lost_or_counted_twice(moments: list[tuple[float, int, int, int]]) -> None:
    history, now_s, totals = History(0.0, NONE_YET, BOUNDS), 0.0, NONE_YET
    for wait_s, ended, chunks, bucket in moments:
        now_s, totals = now_s + wait_s, grown(totals, ended, chunks, bucket)
        history.sample(now_s, totals)
    history.sample(now_s + STEP_S, totals)
    assert sum(step.ended_per_s for step in history) * STEP_S == pytest.approx(totals.ended)
    assert sum(step.chunks_per_s for step in history) * STEP_S == pytest.approx(totals.chunks)
    assert len(history) == history.num_steps
    assert history.next_s > now_s + STEP_S


@given(st.integers(1, 20), st.lists(waits_s, max_size=60))
def test_the_history_never_grows_beyond_its_length(length: int, waits: list[float]) -> None:
    history, now_s = History(0.0, NONE_YET, BOUNDS, length), 0.0
    for wait_s in waits:
        now_s += wait_s
        history.sample(now_s, NONE_YET)
        assert len(history) == min(length, history.num_steps)


def test_a_process_that_stood_still_for_a_day_adds_no_more_than_there_is_room_for() -> None:
    history = History(0.0, NONE_YET, BOUNDS)
    assert history.sample(86_400.0, grown(NONE_YET, 86_400, 0, 0)) == 86_400 / STEP_S
    assert {step.ended_per_s for step in history} == {1.0}
    assert len(history) == 300


def test_a_sample_that_comes_too_early_changes_nothing() -> None:
    history = History(5.0, NONE_YET, BOUNDS)
    assert history.sample(5.0 + STEP_S - 0.001, grown(NONE_YET, 7, 7, 1)) == 0
    assert len(history) == 0
    assert history.sample(5.0 + STEP_S, grown(NONE_YET, 7, 7, 1)) == 1
    assert [step.ended_per_s for step in history] == [7 / STEP_S]


def test_a_step_knows_only_what_was_measured_in_it() -> None:
    history = History(0.0, NONE_YET, BOUNDS)
    first = grown(NONE_YET, 0, 5, 2)
    history.sample(STEP_S, first)
    history.sample(2 * STEP_S, first)
    history.sample(3 * STEP_S, grown(first, 0, 1, 0))
    halves = [summary(step.times["t"], BOUNDS_S).p50_s for step in history]
    assert halves == [pytest.approx(5.5), None, pytest.approx(0.05)]


@given(st.lists(st.floats(0, 30), min_size=1), st.floats(0.01, 1))
@example([0.0, 0.0, 0.0], 1.0)
def test_a_quantile_is_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    buckets = Buckets(BOUNDS_S)
    for value in values:
        buckets.observe(value)
    guess = quantile(HistogramCounts(tuple(buckets.counts)), BOUNDS_S, q)
    rank = next(i for i in range(1, len(values) + 1) if i >= len(values) * q)
    true = sorted(values)[rank - 1]
    assert guess is not None
    low, high = next((a, b) for a, b in pairwise((0.0, *BOUNDS_S, float("inf"))) if true <= b)
    assert low <= guess <= min(high, BOUNDS_S[-1])


@given(st.lists(st.integers(0, 100), min_size=4, max_size=4), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_quantile_is_never_lower(counts: list[int], one: float, other: float) -> None:
    made = HistogramCounts(tuple(counts))
    low, high = quantile(made, BOUNDS_S, min(one, other)), quantile(made, BOUNDS_S, max(one, other))
    if not any(counts):
        assert low is high is None
    else:
        assert low is not None and high is not None and low <= high + 1e-9
