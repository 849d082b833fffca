"""What a scrape of Prometheus gets from one router process, read when it is collected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from baton_serve.router.parts import Leases, Requests, Workers
from baton_serve.router.peers.cleanup import Cleanup
from baton_serve.router.pool.breaker import BreakerState
from baton_serve.router.request.states import State
from baton_serve.router.telemetry.metrics.buckets import Buckets
from baton_serve.router.telemetry.metrics.metrics import PHASES

#: The states in which a request waits for a worker.
_WAITING = frozenset({State.QUEUED, State.HELD})


class RouterCollector(Collector):
    """Turns the numbers into Prometheus' families.

    Metrics that dashboards and autoscalers for vLLM read have vLLM's names, where these mean the same. A router knows
    how many tokens an answer has only if the answer is streamed; workers count all tokens, also by vLLM's names.
    """

    def __init__(
        self,
        workers: Workers,
        requests: Requests,
        leases: Leases,
        vllm_leases: Callable[[], Mapping[str, int]],
        cleanup: Cleanup,
    ) -> None:
        """``vllm_leases``: counters of vLLM's leases."""
        self._workers = workers
        self._requests = requests
        self._leases = leases
        self._vllm_leases = vllm_leases
        self._cleanup = cleanup

    def collect(self) -> Iterable[Metric]:
        """Yields all families."""
        metrics = self._requests.metrics
        states = self._requests.active.count()
        yield _gauge("baton_router_requests", "Live requests by state.", ["state"], _one_label(states))
        yield GaugeMetricFamily(
            "baton_router_held_requests", "Requests that wait for a decode worker.", value=states[State.HELD]
        )
        yield _gauge(
            "baton_router_waiting_requests",
            "Requests that wait for a worker with room.",
            ["queue", "priority_class"],
            metrics.waiting.items(),
        )
        for name, text, value in (
            ("retries_over_budget", "Retries not made because there were too many of late.", metrics.num_over_budget),
            ("displaced", "Requests refused for more urgent ones while they waited.", metrics.num_displaced),
            (
                "held_back",
                "Prompts that were next but waited because of max_leased_fraction.",
                metrics.num_lease_limit_waits,
            ),
            ("held_back_seconds", "How long they did, once they no longer do.", metrics.lease_limit_wait_s),
            ("dead_routers", "Other routers found dead, or gone in order.", self._cleanup.num_dead),
            ("chunks", "Chunks of streams relayed.", metrics.num_chunks),
        ):
            yield CounterMetricFamily(f"baton_router_{name}", text, value=value)
        yield _totals(
            "baton_router_requests_ended", "Requests that are over.", ["outcome", "reason"], metrics.outcomes.items()
        )
        yield _totals(
            "baton_router_ignored_announcements",
            "Values in Redis that look like announcements and were not written by a worker or router of ours.",
            ["kind", "reason"],
            metrics.of_workers.ignored_announcements().items(),
        )
        for name, text, label, counts in self._counts():
            yield _totals(f"baton_router_{name}", text, [label], _one_label(counts))
        for name, text, buckets in (
            ("ttft_seconds", "Arrival to first content; streams only.", metrics.ttft),
            ("itl_seconds", "Time between chunks of a stream.", metrics.itl),
        ):
            yield _histogram(f"baton_router_{name}", text, [], {(): buckets})
        yield _histogram(
            "baton_router_phase_seconds",
            "Time in each phase up to the first decoded byte; read: streams only.",
            ["phase"],
            {(PHASES[state],): buckets for state, buckets in metrics.phases.items()},
        )
        yield from self._worker_gauges()
        yield from self._by_model()

    def _counts(self) -> Iterable[tuple[str, str, str, Mapping[str, int] | Mapping[int, int]]]:
        """Counters with one label: name, text, label, and the count by the label's value."""
        metrics = self._requests.metrics
        of_workers = metrics.of_workers
        return (
            ("aborted", "Aborted, by the state they were in.", "state", metrics.aborted_in),
            ("refused", "Requests refused before they began.", "status", metrics.refused),
            ("retries", "Legs that were tried again.", "leg", metrics.retries),
            ("resumed", "Streams that broke off, by whether another worker went on.", "outcome", metrics.resumed),
            ("direct_requests", "Requests that skipped P.", "reason", metrics.skipped_prefill),
            ("leases", "Leases tracked, by what became of them.", "event", self._leases.renewer.counters()),
            (
                "vllm_leases",
                "Leases on vLLM workers by what became of them, what was sent for them, and what failed.",
                "event",
                self._vllm_leases(),
            ),
            (
                "prefill_aborts",
                "Prefills left before their answer was read, by what became of the call that ends them.",
                "outcome",
                self._leases.prefill_aborts.outcomes,
            ),
            (
                "dead_router_calls",
                "Workers told that another router is gone, by whether they heard.",
                "outcome",
                self._cleanup.outcomes,
            ),
            (
                "worker_proofs",
                "Workers asked to prove that they know the internal token, by what they answered.",
                "outcome",
                of_workers.proofs,
            ),
            (
                "vllm_polls",
                "Rounds of questions to vLLM servers about their load, by whether they were answered.",
                "outcome",
                of_workers.vllm_polls,
            ),
            (
                "vllm_unexpected_expiries",
                "Leases that expired in a vLLM server although this router had not given them up.",
                "worker",
                of_workers.vllm_unexpected_expiries,
            ),
            ("workers_lost", "Workers that left without draining.", "role", of_workers.lost),
        )

    def _worker_gauges(self) -> Iterable[Metric]:
        labels = ["worker", "role"]
        rows = [((worker.worker_id, str(worker.role)), worker) for worker in self._workers.pool]
        up = [(key, int(worker.standing.healthy)) for key, worker in rows]
        up += [((lost.id, lost.role), 0) for lost in self._workers.lost.all()]
        yield _gauge(
            "baton_router_worker_in_flight",
            "Requests sent to a worker and not over.",
            labels,
            [(key, worker.usage.in_flight) for key, worker in rows],
        )
        yield _gauge(
            "baton_router_worker_up",
            "1: the worker can be reached; 0: it cannot, or left without draining.",
            labels,
            up,
        )
        yield _gauge(
            "baton_router_worker_breaker",
            "1 for the state that a worker's breaker is in; not closed: its requests fail.",
            [*labels, "state"],
            [
                ((*key, str(state)), int(state is worker.standing.breaker.state))
                for key, worker in rows
                for state in BreakerState
            ],
        )

    def _by_model(self) -> Iterable[Metric]:
        """The families with vLLM's names. Live requests also of models that have none; each choice counts, as with
        vLLM.
        """
        metrics, labels = self._requests.metrics, ["model_name"]
        label = metrics.models.of
        live = [one for one in self._requests.active.exchanges() if not one.progress.over]
        waiting = Counter(label(one.asked.model) for one in live if one.progress.state in _WAITING)
        all_of = Counter(label(one.asked.model) for one in live)
        models = sorted({label(model) for model in self._workers.pool.models()} | all_of.keys())
        running = {model: all_of[model] - waiting[model] for model in models}
        waits = {model: waiting[model] for model in models}
        yield _gauge("vllm:num_requests_running", "Requests that workers compute.", labels, _one_label(running))
        yield _gauge("vllm:num_requests_waiting", "Requests that wait for a worker.", labels, _one_label(waits))
        yield _histogram(
            "vllm:time_to_first_token_seconds",
            "Arrival to first content; streams only.",
            labels,
            {(model,): times.ttft for model, times in metrics.times.items()},
        )
        yield _histogram(
            "vllm:e2e_request_latency_seconds",
            "Arrival to the end of the answer.",
            labels,
            {(model,): times.e2e for model, times in metrics.times.items()},
        )


#: Values by the values of all labels.
_Values = Iterable[tuple[tuple[str, ...], float]]


def _one_label(values: Mapping[Any, int]) -> _Values:
    return (((str(key),), value) for key, value in values.items())


def _gauge(name: str, text: str, labels: list[str], values: _Values) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def _totals(name: str, text: str, labels: list[str], values: _Values) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def _histogram(name: str, text: str, labels: list[str], values: Mapping[tuple[str, ...], Buckets]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for key, buckets in values.items():
        family.add_metric(key, buckets=buckets.cumulative(), sum_value=buckets.total)
    return family
