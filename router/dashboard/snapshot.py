"""Merges the shares of all routers into one snapshot: adds counts and queues, sorts requests by age. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from baton_serve.router.dashboard.history import STEP_S, Bounds, Step, summary
from baton_serve.router.dashboard.recorder import ITL, TTFT
from baton_serve.router.dashboard.schema import LiveHistory, LiveRouter, Queue, Queues, Snapshot, TimeLines
from baton_serve.router.dashboard.share import MAX_ENDED, RouterShare, oldest_and_newest
from baton_serve.router.pool.lost import LostWorker
from baton_serve.router.pool.view import WorkerView
from baton_serve.router.request.ended import newest_of
from baton_serve.router.request.states import LIVE
from baton_serve.router.telemetry.metrics.metrics import PHASES


def merge(
    time_s: float,
    lease_duration_ms: int,
    routers: list[LiveRouter],
    shares: Sequence[RouterShare],
    history: LiveHistory,
) -> Snapshot:
    """Merge ``shares``: this router's first, then those of the routers that answered. ``time_s``: Unix seconds."""
    counts = Counter[str]()
    for share in shares:
        counts.update(share.counts)
    requests = sorted((r for share in shares for r in share.requests), key=lambda request: -request.age_ms)
    shown, num_cut = oldest_and_newest(requests)
    return Snapshot(
        time=round(time_s, 3),
        lease_duration_ms=lease_duration_ms,
        routers=routers,
        counts={str(state): counts[str(state)] for state in LIVE},
        queues=Queues(
            prefill=_queue([share.queues.prefill for share in shares]),
            held=_queue([share.queues.held for share in shares]),
        ),
        workers=_workers(shares),
        lost=_lost(shares),
        requests=list(shown),
        num_hidden=num_cut + sum(share.num_hidden for share in shares),
        ended=newest_of((one for share in shares for one in share.ended), MAX_ENDED),
        history=history,
    )


def _queue(queues: Sequence[Queue]) -> Queue:
    waits = [one.oldest_ms for one in queues if one.oldest_ms is not None]
    return Queue(sum(one.length for one in queues), max(waits, default=None))


def _workers(shares: Sequence[RouterShare]) -> list[WorkerView]:
    """Each worker once, as seen by the first share that has it.

    It drains if any router reports so; ``occupied`` is the highest count.
    """
    found: dict[str, WorkerView] = {}
    for share in shares:
        for worker in share.workers:
            known = found.get(worker.id, worker)
            found[worker.id] = replace(
                known,
                draining=known.draining or worker.draining,
                occupied=max(known.occupied, worker.occupied),
            )
    return list(found.values())


def _lost(shares: Sequence[RouterShare]) -> list[LostWorker]:
    """Each lost worker once, as the first router that misses it tells, unless another router still knows it."""
    known = {worker.id for share in shares for worker in share.workers}
    found: dict[str, LostWorker] = {}
    for lost in (one for share in shares for one in share.lost if one.id not in known):
        found.setdefault(lost.id, lost)
    return list(found.values())


def columns(steps: Sequence[Step], bounds: Bounds) -> LiveHistory:
    """The steps as columns for plots."""

    def lines(name: str) -> TimeLines:
        times = [summary(step.times[name], bounds[name]) for step in steps]
        return TimeLines(
            _column([t.p50_s for t in times], 1e3),
            _column([t.p95_s for t in times], 1e3),
            _column([t.mean_s for t in times], 1e3),
        )

    return LiveHistory(
        step_s=STEP_S,
        requests_per_s=_column([step.ended_per_s for step in steps]),
        failed_per_s=_column([step.failed_per_s for step in steps]),
        refused_per_s=_column([step.refused_per_s for step in steps]),
        failed_by_status=_by_status([step.failed_by_status for step in steps]),
        refused_by_status=_by_status([step.refused_by_status for step in steps]),
        tokens_per_s=_column([step.chunks_per_s for step in steps]),
        live={str(state): _column([step.live.get(str(state), 0) for step in steps]) for state in LIVE},
        ttft=lines(TTFT),
        phases={str(state): lines(str(state)) for state in PHASES},
        itl=lines(ITL),
    )


def _by_status(steps: Sequence[dict[str, float]]) -> dict[str, list[float | None]]:
    statuses = sorted({status for step in steps for status in step})
    return {status: _column([step.get(status, 0.0) for step in steps]) for status in statuses}


def _column(values: Sequence[float | None], scale: float = 1.0) -> list[float | None]:
    return [None if value is None else round(value * scale, 3) for value in values]
