"""``/metrics``: the HTTP server's counts, and the engine's numbers, which are read at every scrape."""

from __future__ import annotations

from collections import Counter as Counts
from dataclasses import fields
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from baton_serve.workers.handshake.peer_view import HandshakeStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client.metrics_core import Metric

    from baton_serve.core.protocol.steps import ReadResult, StepResult
    from baton_serve.workers.engine.counters import EngineStats
    from baton_serve.workers.text.transcript import Transcript

PREFIX = "baton_worker"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Counts of the lease keeper that are not outcomes of leases.
_LEASE_COUNTS = {
    "leases_granted": "Leases granted.",
    "leases_late_done": "Reads reported after their lease had ended.",
    "leases_store_errors": "Times that the lease store did not answer.",
}
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class WorkerMetrics:
    """The metrics of one worker. The engine calls ``on_step`` and ``on_read``, the HTTP server calls ``observe``.

    ``lease_counts`` returns the lease keeper's counts: leases by outcome, and the counts named in ``_LEASE_COUNTS``.
    ``handshakes`` returns the handshake pool's statistics. ``load_seconds``: how long loading the model took, by part.
    ``model``: its name, for the numbers with vLLM's names; empty: there are none.
    """

    def __init__(
        self,
        engine_stats: Callable[[], EngineStats],
        lease_counts: Callable[[], Mapping[str, int]],
        handshakes: Callable[[], HandshakeStats] = HandshakeStats,
        load_seconds: Mapping[str, float] | None = None,
        model: str = "",
    ) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        #: Requests that ended in order, by finish reason; tokens of prompts, and tokens answered.
        self._ended: Counts[str] = Counts()
        self._num_prompt_tokens = self._num_new_tokens = 0
        loading = Gauge(
            f"{PREFIX}_load_seconds",
            "Seconds that loading the model took: reading the weights, then hashing every byte of them.",
            ["part"],
            registry=self._registry,
        )
        for part, seconds in (load_seconds or {}).items():
            loading.labels(part).set(seconds)
        self._engine_stats = engine_stats
        self._lease_counts = lease_counts
        self._handshakes = handshakes
        self._registry.register(_Collector(self._families))
        self._requests = Counter(
            f"{PREFIX}_requests", "Requests answered, by why they ended.", ["finish_reason"], registry=self._registry
        )
        self._prompt_tokens = Counter(
            f"{PREFIX}_prompt_tokens", "Prompt tokens of answered requests.", registry=self._registry
        )
        self._generation_tokens = Counter(
            f"{PREFIX}_generation_tokens", "Tokens answered, P's first token included.", registry=self._registry
        )
        self._step_seconds = Histogram(
            f"{PREFIX}_step_seconds", "Seconds of one forward pass.", buckets=_SECONDS, registry=self._registry
        )
        self._read_seconds = Histogram(
            f"{PREFIX}_read_seconds",
            "Seconds of one block read, from posting to the fence's answer.",
            ["outcome"],
            buckets=_SECONDS,
            registry=self._registry,
        )

    def observe(self, transcript: Transcript) -> None:
        """Count a request that has ended, under ``error`` if it has no ``finish_reason``."""
        usage = transcript.usage
        num_new = usage.num_completion_tokens - transcript.num_given
        self._requests.labels(transcript.finish_reason or "error").inc()
        self._prompt_tokens.inc(usage.num_prompt_tokens)
        self._generation_tokens.inc(num_new)
        self._ended[transcript.finish_reason or "error"] += 1
        self._num_prompt_tokens += usage.num_prompt_tokens
        self._num_new_tokens += num_new

    def on_step(self, result: StepResult) -> None:
        self._step_seconds.observe(result.seconds)

    def on_read(self, result: ReadResult) -> None:
        self._read_seconds.labels(result.outcome).observe(result.seconds)

    def _families(self) -> Iterable[Metric]:
        """The engine's numbers, read at every scrape."""
        stats = self._engine_stats()
        yield from _gauges(stats)
        yield from _counters(stats)
        yield from _handshakes(self._handshakes())
        leases = dict(self._lease_counts())
        for name, text in _LEASE_COUNTS.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=leases.pop(name.removeprefix("leases_"), 0))
        yield _by("lease_outcomes", "Leases ended, by outcome.", "outcome", leases)
        if self._model:
            yield from self._vllm_families(stats)

    def _vllm_families(self, stats: EngineStats) -> Iterable[Metric]:
        """vLLM's names, for the dashboards and autoscalers that read them."""
        load, pool = stats.load, stats.pool
        in_use = (pool.pinned + pool.leased) / pool.total if pool.total else 0.0
        for name, text, value in (
            ("num_requests_running", "Sequences running or reading.", load.running + load.reading),
            ("num_requests_waiting", "Sequences waiting for room.", load.waiting),
            ("kv_cache_usage_perc", "Fraction of the KV cache in use; cached blocks are free.", in_use),
        ):
            yield _filled(GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"]), {self._model: value})
        for name, text, count in (
            ("prompt_tokens", "Prompt tokens of requests that are over.", self._num_prompt_tokens),
            ("generation_tokens", "Tokens sampled for requests that are over.", self._num_new_tokens),
        ):
            yield _filled(CounterMetricFamily(f"vllm:{name}", text, labels=["model_name"]), {self._model: count})
        ended = CounterMetricFamily(
            "vllm:request_success", "Requests that ended in order.", labels=["model_name", "finished_reason"]
        )
        for reason in ("stop", "length"):
            ended.add_metric([self._model, reason], self._ended[reason])
        yield ended

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _Collector(Collector):
    """Calls ``families`` at every scrape."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        """Return nothing; without this method ``register`` would call ``collect`` before the engine runs."""
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._families()


def _gauges(stats: EngineStats) -> Iterable[Metric]:
    load, pool = stats.load, stats.pool
    for name, text, value in (
        ("requests_running", "Sequences running.", load.running),
        ("requests_waiting", "Sequences waiting for room.", load.waiting),
        ("requests_reading", "Sequences whose blocks are being read from P.", load.reading),
        ("leases", "Leases that hold blocks.", pool.leases),
        ("draining", "1 while the worker takes nothing new.", int(load.draining)),
        ("kv_block_capacity", "Blocks in the KV cache.", pool.total),
    ):
        yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)
    blocks = GaugeMetricFamily(f"{PREFIX}_kv_blocks", "Blocks by state; they add up to the capacity.", labels=["state"])
    yield _filled(blocks, {state: getattr(pool, state) for state in ("free", "cached", "pinned", "leased")})


def _handshakes(stats: HandshakeStats) -> Iterable[Metric]:
    states = GaugeMetricFamily(f"{PREFIX}_handshakes", "Remote engines by state of the handshake.", labels=["state"])
    yield _filled(states, stats.states)
    yield _by(
        "handshake_failures", "Handshakes that failed and engines lost since, by reason.", "reason", stats.failures
    )
    yield SummaryMetricFamily(
        f"{PREFIX}_handshake_seconds",
        "Handshakes that worked, from the first request to all ranks connected.",
        count_value=stats.num_done,
        sum_value=stats.done_seconds,
    )
    yield GaugeMetricFamily(
        f"{PREFIX}_reads_stuck", "Block reads that were given up and have not ended.", value=stats.stuck_reads
    )


def _counters(stats: EngineStats) -> Iterable[Metric]:
    counters = stats.counters
    for one in fields(counters):
        if one.metadata:
            name = f"{PREFIX}_{one.metadata['name'] or one.name}"
            yield CounterMetricFamily(name, one.metadata["text"], value=getattr(counters, one.name))
    yield _by("reads", "Block reads ended, by outcome.", "outcome", counters.reads)
    yield _by("sequences_ended", "Sequences ended, by state.", "state", counters.ended)


def _by(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    return _filled(CounterMetricFamily(f"{PREFIX}_{name}", text, labels=[label]), values)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]) -> Metric:
    """A family with one label, with a value for each of the label's."""
    for key, value in values.items():
        family.add_metric([key], value)
    return family
