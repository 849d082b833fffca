"""How fast it goes: what changed between two readings of the router's ``/metrics``. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDED = "baton_router_requests_ended_total"
_TTFT = "baton_router_ttft_seconds"
_ITL = "baton_router_itl_seconds"
_INFINITE = float("inf")


@dataclass(frozen=True)
class Reading:
    """Counters at one moment, since the router's start."""

    at_s: float
    ended: float = 0.0
    failed: float = 0.0
    #: Upper bound, seconds, to values up to it.
    ttft: Mapping[float, float] = field(default_factory=dict)
    itl: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Rates:
    """Between two readings. None: nothing was measured."""

    requests_per_s: float | None = None
    failed_per_s: float | None = None
    #: Chunks of streams, which are tokens or a few of them.
    chunks_per_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    itl_p50_s: float | None = None


def read(page: str, at_s: float) -> Reading:
    """A page of ``/metrics``; ``at_s`` on any clock that only goes forward. Raises ValueError."""
    ended = failed = 0.0
    buckets: dict[str, dict[float, float]] = {f"{_TTFT}_bucket": {}, f"{_ITL}_bucket": {}}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == _ENDED:
                ended += sample.value
                failed += sample.value if sample.labels.get("outcome") == "failed" else 0
            elif sample.name in buckets:
                buckets[sample.name][float(sample.labels["le"])] = sample.value
    return Reading(at_s, ended, failed, buckets[f"{_TTFT}_bucket"], buckets[f"{_ITL}_bucket"])


def between(before: Reading, after: Reading) -> Rates:
    """What happened in between. Counters that went back are a router that was started anew: nothing is known then."""
    seconds = after.at_s - before.at_s
    itl = _delta(before.itl, after.itl)
    if seconds <= 0 or after.ended < before.ended or itl.get(_INFINITE, 0) < 0:
        return Rates()
    ttft = _delta(before.ttft, after.ttft)
    return Rates(
        requests_per_s=(after.ended - before.ended) / seconds,
        failed_per_s=(after.failed - before.failed) / seconds,
        chunks_per_s=itl.get(_INFINITE, 0) / seconds,
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p95_s=quantile(ttft, 0.95),
        itl_p50_s=quantile(itl, 0.5),
    )


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """As Prometheus' ``histogram_quantile``: even within a bucket; the last finite bound for what is beyond it."""
    total = buckets.get(_INFINITE, 0)
    if total <= 0:
        return None
    lower, below = 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= share * total:
            return lower if bound == _INFINITE else lower + (bound - lower) * (share * total - below) / (count - below)
        lower, below = bound, count
    return lower


def _delta(before: Mapping[float, float], after: Mapping[float, float]) -> dict[float, float]:
    return {bound: count - before.get(bound, 0) for bound, count in after.items()}
