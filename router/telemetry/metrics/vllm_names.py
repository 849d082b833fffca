"""The numbers that dashboards and autoscalers made for vLLM read, by vLLM's names, where they mean the same.

A router does not know how many tokens an answer has unless it is streamed; workers count them, by the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

from baton_serve.router.telemetry.metrics.buckets import Buckets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client.metrics_core import Metric

    from baton_serve.router.request.facts import RequestFacts

_TTFT_BOUNDS_S = (0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_E2E_BOUNDS_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)
_LABELS = ("model_name",)


class LiveRequests(NamedTuple):
    """The live requests of one model. A request that waits for a P or a D is waiting."""

    running: int
    waiting: int


class ModelTimes:
    """Times of the requests of one model that are done, seconds."""

    __slots__ = ("e2e", "ttft")

    def __init__(self) -> None:
        self.ttft = Buckets(_TTFT_BOUNDS_S)
        self.e2e = Buckets(_E2E_BOUNDS_S)

    def observe(self, facts: RequestFacts) -> None:
        """Count a request that is done."""
        self.e2e.observe(facts.age_s)
        if facts.ttft_s is not None:
            self.ttft.observe(facts.ttft_s)


def vllm_families(times: Mapping[str, ModelTimes], live: Mapping[str, LiveRequests]) -> Iterable[Metric]:
    """The families, by model."""
    for index, (name, text) in enumerate(
        (
            ("num_requests_running", "Requests that workers compute."),
            ("num_requests_waiting", "Requests that wait for a worker."),
        )
    ):
        gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        for model, counts in live.items():
            gauge.add_metric([model], counts[index])
        yield gauge
    for name, text in (
        ("time_to_first_token_seconds", "Arrival to first content; streams only."),
        ("e2e_request_latency_seconds", "Arrival to the end of the answer."),
    ):
        histogram = HistogramMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        for model, one in times.items():
            buckets = one.ttft if name == "time_to_first_token_seconds" else one.e2e
            histogram.add_metric([model], buckets=buckets.cumulative(), sum_value=buckets.total)
        yield histogram
