"""How fast all routers go: the newest steps of the history in ``GET /admin/live``. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: A time that was measured so many steps ago says something of now. Few requests begin in two seconds.
FRESH_STEPS = 5


@dataclass(frozen=True)
class Rates:
    """None: nothing was measured, or the router does not tell."""

    ended_per_s: float | None = None
    failed_per_s: float | None = None
    refused_per_s: float | None = None
    #: Events of streams, which are tokens or a few of them.
    tokens_per_s: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    itl_p50_ms: float | None = None
    #: What is drawn over time, by its name: one value a step, oldest first.
    series: Mapping[str, Sequence[float | None]] = field(default_factory=dict)


def rates_of(history: Mapping[str, Any]) -> Rates:
    """Of the history in a snapshot; what it lacks is None."""
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
    """The newest value of the last ``num_steps`` steps."""
    return next((value for value in reversed((values or ())[-num_steps:]) if value is not None), None)
