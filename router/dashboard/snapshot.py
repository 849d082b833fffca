"""What the page shows now, out of what the router knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.dashboard.history import STEP_S, Counts, Totals, column
from router.dashboard.schema import (
    Blocks,
    Handshakes,
    LiveHistory,
    LiveRequest,
    LiveWorker,
    QuantileLines,
    Queue,
    Queues,
    Snapshot,
)
from router.metrics import PHASES
from router.request import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.dashboard.history import History
    from router.exchange import Exchange
    from router.metrics import Buckets, Metrics
    from router.services import Services
    from router.workers import Worker

#: Requests listed one by one: half of them the oldest, half the newest.
MAX_LISTED = 100
#: What clients chose is cut to so many characters.
MAX_TEXT = 100

#: Names of the histograms in ``Totals.times``; those of the phases are the states.
_TTFT, _ITL = "ttft", "itl"


def read_totals(metrics: Metrics) -> Totals:
    """The counters of ``/metrics`` as they are now."""
    outcomes = metrics.outcomes
    times = {_TTFT: _counts(metrics.ttft), _ITL: _counts(metrics.itl)}
    for state, phase in PHASES.items():
        times[str(state)] = _counts(metrics.phases[phase])
    return Totals(
        ended=sum(outcomes.values()),
        failed=sum(count for (outcome, _), count in outcomes.items() if outcome == State.FAILED),
        chunks=times[_ITL].total,
        times=times,
    )


def take_snapshot(services: Services, history: History, time_s: float) -> Snapshot:
    """The router now. ``time_s``: seconds since 1970."""
    exchanges = tuple(services.active)
    shown = exchanges
    if len(exchanges) > MAX_LISTED:
        shown = (*exchanges[: MAX_LISTED // 2], *exchanges[-MAX_LISTED // 2 :])
    return Snapshot(
        time=round(time_s, 3),
        lease_duration_ms=services.settings.lease_duration_ms,
        counts={str(state): count for state, count in services.active.count().items()},
        queues=Queues(
            prefill=Queue(len(services.prefill_queue), _oldest_ms(exchanges, State.QUEUED)),
            held=Queue(len(services.held_queue), _oldest_ms(exchanges, State.HELD)),
        ),
        workers=[_worker(worker) for worker in services.pool],
        requests=[_request(services, x) for x in shown],
        num_hidden=len(exchanges) - len(shown),
        history=_history(history),
    )


def _counts(buckets: Buckets) -> Counts:
    return Counts(buckets.bounds, tuple(buckets.counts))


def _in_state_ms(x: Exchange) -> float:
    return round((x.age_s() - sum(x.progress.spent_s.values())) * 1e3, 1)


def _oldest_ms(exchanges: Sequence[Exchange], state: State) -> float | None:
    return max((_in_state_ms(x) for x in exchanges if x.progress.state is state), default=None)


def _worker(worker: Worker) -> LiveWorker:
    load = worker.load
    blocks = (load.free_blocks, load.cached_blocks, load.pinned_blocks, load.leased_blocks)
    return LiveWorker(
        id=worker.worker_id,
        role=str(worker.role),
        tp=worker.tp,
        models=worker.models,
        healthy=worker.healthy,
        draining=worker.draining,
        occupied=worker.occupied,
        limit=worker.limit,
        blocks=Blocks(*blocks, total=sum(blocks)) if any(blocks) else None,
        leases=load.leases,
        handshakes=Handshakes(load.peers_connecting, load.peers_connected, load.peers_failed),
    )


def _request(services: Services, x: Exchange) -> LiveRequest:
    return LiveRequest(
        id=x.request_id,
        state=str(x.progress.state),
        model=x.ask.model[:MAX_TEXT],
        user=x.ask.user[:MAX_TEXT],
        stream=x.ask.stream,
        age_ms=round(x.age_s() * 1e3, 1),
        in_state_ms=_in_state_ms(x),
        phases_ms={str(state): round(seconds * 1e3, 1) for state, seconds in x.progress.spent_s.items()},
        prefill_worker=x.prefill_worker.worker_id if x.prefill_worker else None,
        decode_worker=x.decode_worker.worker_id if x.decode_worker else None,
        lease_remaining_ms=services.leases.remaining_ms(x.engine_id, x.lease_id) if x.lease_id else None,
        num_tokens=x.num_tokens,
    )


def _history(history: History) -> LiveHistory:
    steps = list(history)

    def lines(name: str) -> QuantileLines:
        times = [step.times[name] for step in steps]
        return QuantileLines(column([t.p50_s for t in times], 1e3), column([t.p95_s for t in times], 1e3))

    return LiveHistory(
        step_s=STEP_S,
        requests_per_s=column([step.ended_per_s for step in steps]),
        failed_per_s=column([step.failed_per_s for step in steps]),
        tokens_per_s=column([step.chunks_per_s for step in steps]),
        ttft=lines(_TTFT),
        phases={str(state): lines(str(state)) for state in PHASES},
        itl=lines(_ITL),
    )
