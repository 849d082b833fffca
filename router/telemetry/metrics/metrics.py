"""Metrics for Prometheus. Counting is a few additions on plain fields; the text is made only at a scrape."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from baton_serve.core.protocol.worker import Role
from baton_serve.router.placement import SkipPrefill
from baton_serve.router.pool.breaker import BreakerState
from baton_serve.router.request.states import State
from baton_serve.router.telemetry.metrics.buckets import Buckets
from baton_serve.router.telemetry.metrics.labels import BoundedLabel
from baton_serve.router.telemetry.metrics.vllm_names import LiveRequests, ModelTimes, vllm_families
from baton_serve.router.upstream.worker_errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client.metrics_core import Metric

    from baton_serve.core.protocol.errors import ApiError
    from baton_serve.router.pool.lost import LostWorker
    from baton_serve.router.request.facts import RequestFacts

_ITL_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_TTFT_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0)

#: The phases of a request until D's first byte, by the state they are spent in.
PHASES: Final = {State.QUEUED: "queue", State.PREFILLING: "prefill", State.HELD: "held", State.READING: "read"}


class DeadRouters(Protocol):
    """What is counted of the clean-up after other routers; see ``peers.cleanup``."""

    num_dead: int
    outcomes: Counter[str]


class WorkerCounts:
    """What one router counts of workers, whatever requests they have."""

    def __init__(self) -> None:
        #: Announcements that were ignored: unsigned, wrongly signed or not Baton's; by ("worker" or "router", reason).
        self.ignored_announcements: Callable[[], Counter[tuple[str, str]]] = Counter
        #: Whether workers of the registry proved that they know the internal token; "none": no answer.
        self.proofs: Counter[str] = Counter({"proven": 0, "wrong": 0, "none": 0})
        #: Workers that left without saying so, by role.
        self.lost: Counter[str] = Counter(dict.fromkeys(map(str, Role), 0))
        #: Rounds of questions to vLLM servers: answered, or failed.
        self.vllm_polls: Counter[str] = Counter({"answered": 0, "failed": 0})
        #: Leases on blocks of vLLM servers that expired without this router expecting it, by worker.
        self.vllm_unexpected_expiries: Counter[str] = Counter()


class Metrics:
    """Everything one router counts."""

    def __init__(self) -> None:
        self.itl = Buckets(_ITL_BOUNDS_S)
        self.ttft = Buckets(_TTFT_BOUNDS_S)
        #: The models that have series of their own.
        self.models = BoundedLabel()
        #: Times by model.
        self.times: defaultdict[str, ModelTimes] = defaultdict(ModelTimes)
        #: Times in each state of ``PHASES``.
        self.phases = {state: Buckets(_TTFT_BOUNDS_S) for state in PHASES}
        #: (outcome, reason), e.g. ("aborted", "client_gone").
        self.outcomes: Counter[tuple[str, str]] = Counter()
        #: Aborted requests, by the state that they were in.
        self.aborted_in: Counter[str] = Counter()
        #: Requests that never began, and requests that failed, by the status of the answer.
        self.refused: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.retries: Counter[str] = Counter({"prefill": 0, "decode": 0, "prefill_again": 0})
        #: Streams that broke: continued by another worker ("resumed"), ended before that ("failed", "aborted"), or not
        #: given to another worker ("refused").
        self.resumed: Counter[str] = Counter({"resumed": 0, "failed": 0, "aborted": 0, "refused": 0})
        #: Retries that were not made because the retry budget was spent.
        self.num_over_budget = 0
        #: Requests that skipped P, by reason.
        self.skipped_prefill: Counter[str] = Counter(dict.fromkeys(SkipPrefill, 0))
        #: Requests that wait for room now, by queue ("prefill" or "held") and priority class.
        self.waiting: Counter[tuple[str, str]] = Counter()
        #: Requests answered 429 to make room for more urgent ones.
        self.num_displaced = 0
        #: Prompts at the head of the queue that waited because of ``max_leased_fraction``, and for how long, seconds.
        self.num_lease_limit_waits = 0
        self.lease_limit_wait_s = 0.0
        self.num_chunks = 0
        self.of_workers = WorkerCounts()

    def ended(self, facts: RequestFacts) -> None:
        """Count a request that is over."""
        state = facts.state
        self.num_chunks += facts.num_chunks
        if facts.is_migrating:
            self.resumed["aborted" if state is State.ABORTED else "failed"] += 1
        self.outcomes[str(state), "" if facts.is_error_relayed else _reason(facts.error)] += 1
        if state is State.DONE:
            self._note_times(facts)
        elif state is State.ABORTED:
            self.aborted_in[str(facts.ended_in)] += 1
        elif state is State.FAILED:
            self.failed[facts.error.status if facts.error else 500] += 1

    def _note_times(self, facts: RequestFacts) -> None:
        """Count the times of a request that is done.

        The first content of an unstreamed answer is all of it: no TTFT, no read.
        """
        self.times[self.models.of(facts.model)].observe(facts)
        if facts.ttft_s is not None:
            self.ttft.observe(facts.ttft_s)
        is_stream = facts.stream
        for state, seconds in facts.spent_s.items():
            phase = self.phases.get(state)
            if phase is not None and (is_stream or state is not State.READING):
                phase.observe(seconds)


def _reason(error: ApiError | None) -> str:
    """The reason as a label. Labels must have few values, so a worker's own error code is replaced by its status."""
    if error is None:
        return ""
    return f"worker_{error.status}" if isinstance(error, WorkerError) else error.code or error.type


class RouterCollector(Collector):
    """Turns the numbers into Prometheus' families. The callables return what other parts count."""

    def __init__(
        self,
        metrics: Metrics,
        states: Callable[[], Mapping[State, int]],
        leases: Callable[[], Mapping[str, int]],
        vllm_leases: Callable[[], Mapping[str, int]],
        prefill_aborts: Callable[[], Mapping[str, int]],
        cleanup: DeadRouters,
        workers: Callable[[], Iterable[tuple[str, str, int, bool, BreakerState]]],
        live: Callable[[], Mapping[str, LiveRequests]] = dict,
        lost: Callable[[], Iterable[LostWorker]] = tuple,
    ) -> None:
        self._lost = lost
        self._live = live
        self._metrics = metrics
        self._states = states
        self._leases = leases
        self._vllm_leases = vllm_leases
        self._prefill_aborts = prefill_aborts
        self._cleanup = cleanup
        self._workers = workers

    def collect(self) -> Iterable[Metric]:
        """Yields all families."""
        metrics = self._metrics
        states = self._states()
        yield _gauge("baton_router_requests", "Live requests by state.", "state", states)
        yield GaugeMetricFamily(
            "baton_router_held_requests", "Requests that wait for a decode worker.", value=states[State.HELD]
        )
        yield _totals(
            "baton_router_requests_ended", "Requests that are over.", ["outcome", "reason"], metrics.outcomes.items()
        )
        yield _counter("baton_router_aborted", "Aborted, by the state they were in.", "state", metrics.aborted_in)
        yield _counter("baton_router_refused", "Requests refused before they began.", "status", metrics.refused)
        yield _counter("baton_router_retries", "Legs that were tried again.", "leg", metrics.retries)
        yield _counter(
            "baton_router_resumed",
            "Streams that broke off, by whether another worker went on.",
            "outcome",
            metrics.resumed,
        )
        yield CounterMetricFamily(
            "baton_router_retries_over_budget",
            "Retries not made because there were too many of late.",
            value=metrics.num_over_budget,
        )
        waiting = GaugeMetricFamily(
            "baton_router_waiting_requests",
            "Requests that wait for a worker with room.",
            labels=["queue", "priority_class"],
        )
        for key, value in metrics.waiting.items():
            waiting.add_metric(list(key), value)
        yield waiting
        yield CounterMetricFamily(
            "baton_router_displaced",
            "Requests refused for more urgent ones while they waited.",
            value=metrics.num_displaced,
        )
        yield CounterMetricFamily(
            "baton_router_held_back",
            "Prompts that were next but waited because of max_leased_fraction.",
            value=metrics.num_lease_limit_waits,
        )
        yield CounterMetricFamily(
            "baton_router_held_back_seconds",
            "How long they did, once they no longer do.",
            value=metrics.lease_limit_wait_s,
        )
        yield _counter("baton_router_direct_requests", "Requests that skipped P.", "reason", metrics.skipped_prefill)
        yield _counter("baton_router_leases", "Leases tracked, by what became of them.", "event", self._leases())
        yield _counter(
            "baton_router_vllm_leases",
            "Leases on vLLM workers by what became of them, what was sent for them, and what failed.",
            "event",
            self._vllm_leases(),
        )
        yield _counter(
            "baton_router_prefill_aborts",
            "Prefills left before their answer was read, by what became of the call that ends them.",
            "outcome",
            self._prefill_aborts(),
        )
        yield CounterMetricFamily(
            "baton_router_dead_routers", "Other routers found dead, or gone in order.", value=self._cleanup.num_dead
        )
        yield _counter(
            "baton_router_dead_router_calls",
            "Workers told that another router is gone, by whether they heard.",
            "outcome",
            self._cleanup.outcomes,
        )
        yield _totals(
            "baton_router_ignored_announcements",
            "Values in Redis that look like announcements and were not written by a worker or router of ours.",
            ["kind", "reason"],
            metrics.of_workers.ignored_announcements().items(),
        )
        yield _counter(
            "baton_router_worker_proofs",
            "Workers asked to prove that they know the internal token, by what they answered.",
            "outcome",
            metrics.of_workers.proofs,
        )
        yield _counter(
            "baton_router_vllm_polls",
            "Rounds of questions to vLLM servers about their load, by whether they were answered.",
            "outcome",
            metrics.of_workers.vllm_polls,
        )
        yield _counter(
            "baton_router_vllm_unexpected_expiries",
            "Leases that expired in a vLLM server although this router had not given them up.",
            "worker",
            metrics.of_workers.vllm_unexpected_expiries,
        )
        yield _counter(
            "baton_router_workers_lost", "Workers that left without draining.", "role", metrics.of_workers.lost
        )
        yield CounterMetricFamily("baton_router_chunks", "Chunks of streams relayed.", value=metrics.num_chunks)
        yield _histogram("baton_router_ttft_seconds", "Arrival to first content; streams only.", metrics.ttft)
        yield _histogram("baton_router_itl_seconds", "Time between chunks of a stream.", metrics.itl)
        phases = HistogramMetricFamily(
            "baton_router_phase_seconds",
            "Time in each phase up to the first decoded byte; read: streams only.",
            labels=["phase"],
        )
        for state, buckets in metrics.phases.items():
            phases.add_metric([PHASES[state]], buckets=buckets.cumulative(), sum_value=buckets.total)
        yield phases
        yield from self._worker_gauges()
        yield from vllm_families(metrics.times, self._live())

    def _worker_gauges(self) -> Iterable[Metric]:
        in_flight = GaugeMetricFamily(
            "baton_router_worker_in_flight", "Requests sent to a worker and not over.", labels=["worker", "role"]
        )
        up = GaugeMetricFamily(
            "baton_router_worker_up",
            "1: the worker can be reached; 0: it cannot, or left without draining.",
            labels=["worker", "role"],
        )
        breaker = GaugeMetricFamily(
            "baton_router_worker_breaker",
            "1 for the state that a worker's breaker is in; not closed: its requests fail.",
            labels=["worker", "role", "state"],
        )
        for worker_id, role, count, healthy, state in self._workers():
            in_flight.add_metric([worker_id, role], count)
            up.add_metric([worker_id, role], int(healthy))
            for one in BreakerState:
                breaker.add_metric([worker_id, role, str(one)], int(one is state))
        for lost in self._lost():
            up.add_metric([lost.id, lost.role], 0)
        yield in_flight
        yield up
        yield breaker


def _gauge(name: str, text: str, label: str, values: Mapping[State, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([str(key)], value)
    return family


def _counter(name: str, text: str, label: str, values: Mapping[str, int] | Mapping[int, int]) -> Metric:
    return _totals(name, text, [label], [((str(key),), value) for key, value in values.items()])


def _totals(name: str, text: str, labels: list[str], values: Iterable[tuple[Iterable[str], int]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values:
        family.add_metric(list(key), value)
    return family


def _histogram(name: str, text: str, buckets: Buckets) -> Metric:
    return HistogramMetricFamily(name, text, buckets=buckets.cumulative(), sum_value=buckets.total)
