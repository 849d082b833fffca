"""Metrics for Prometheus. Counting is a few additions on plain fields; ``apps.collector`` reads them at a scrape."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Final

from baton_serve.core.protocol.errors import ApiError
from baton_serve.core.protocol.worker import Role
from baton_serve.router.placement import SkipPrefill
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.request.states import State
from baton_serve.router.telemetry.metrics.buckets import Buckets
from baton_serve.router.telemetry.metrics.labels import BoundedLabel
from baton_serve.router.upstream.worker_errors import WorkerError

_ITL_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_TTFT_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0)
#: vLLM's own bounds, for what has vLLM's names.
_VLLM_TTFT_S = (0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_VLLM_E2E_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)

#: The phases of a request until D's first byte, by the state they are spent in.
PHASES: Final = {State.QUEUED: "queue", State.PREFILLING: "prefill", State.HELD: "held", State.READING: "read"}


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


class ModelTimes:
    """Times of the requests of one model that are done, seconds."""

    __slots__ = ("e2e", "ttft")

    def __init__(self) -> None:
        self.ttft = Buckets(_VLLM_TTFT_S)
        self.e2e = Buckets(_VLLM_E2E_S)

    def observe(self, facts: RequestFacts) -> None:
        """Count a request that is done."""
        self.e2e.observe(facts.age_s)
        if facts.ttft_s is not None:
            self.ttft.observe(facts.ttft_s)


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
