"""The newest rates of all routers together, from the history in ``GET /admin/live``. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: A latency is shown until it is this many steps old: in one step, two seconds, it may be that no request begins.
FRESH_STEPS = 5


@dataclass(frozen=True)
class Rates:
    """The rates. None where nothing was measured, or where the router does not report it."""

    ended_per_s: float | None = None
    failed_per_s: float | None = None
    refused_per_s: float | None = None
    #: Events of streams; an event has one token or a few.
    tokens_per_s: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    itl_p50_ms: float | None = None
    #: The rates that are drawn over time, by name: one value a step, oldest first.
    series: Mapping[str, Sequence[float | None]] = field(default_factory=dict)


def rates_of(history: Mapping[str, Any]) -> Rates:
    """The rates of a snapshot's history; rates that it lacks are None."""
    ttft, itl = history.get("ttft") or {}, history.get("itl") or {}
    return Rates(
        ended_per_s=_newest(history.get("requests_per_s")),
        failed_per_s=_newest(history.get("failed_per_s")),
        refused_per_s=_newest(history.get("refused_per_s")),
        tokens_per_s=_newest(history.get("tokens_per_s")),
        ttft_p50_ms=_newest(ttft.get("p50_ms"), FRESH_STEPS),
        ttft_p95_ms=_newest(ttft.get("p95_ms"), FRESH_STEPS),
        itl_p50_ms=_newest(itl.get("p50_ms"), FRESH_STEPS),
        series={
            "ended/s": history.get("requests_per_s") or (),
            "tokens/s": history.get("tokens_per_s") or (),
            "TTFT p50": ttft.get("p50_ms") or (),
        },
    )


def _newest(values: Sequence[float | None] | None, num_steps: int = 1) -> float | None:
    """The newest value that is not None among the last ``num_steps``."""
    return next((value for value in reversed((values or ())[-num_steps:]) if value is not None), None)
