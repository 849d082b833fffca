"""The histograms of the metrics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.telemetry.metrics.buckets import Buckets


@given(st.lists(st.floats(0, 10, allow_nan=False), max_size=50))
def test_buckets_are_cumulative(values: list[float]) -> None:
    buckets = Buckets((0.1, 1.0))
    for value in values:
        buckets.observe(value)
    assert buckets.cumulative() == [
        ("0.1", sum(value <= 0.1 for value in values)),
        ("1.0", sum(value <= 1.0 for value in values)),
        ("+Inf", len(values)),
    ]
