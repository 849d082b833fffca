"""One router's share of a snapshot: what it shows itself, and what ``GET /internal/live`` tells the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import msgspec

from router.dashboard.history import Step
from router.dashboard.merged_history import position
from router.dashboard.schema import Blocks, Handshakes, LiveRequest, LiveWorker, Queue, Queues
from router.request.ended import MAX_ERROR_CHARS, MAX_TEXT_CHARS, EndedRequest
from router.request.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.dashboard.recorder import Recorder
    from router.pool import Worker
    from router.request.exchange import Exchange
    from router.services import Services

T = TypeVar("T")

#: Requests listed one by one: half of them the oldest, half the newest.
MAX_LISTED = 100
#: Requests that are over, listed of each outcome.
MAX_ENDED = 25


class Part(msgspec.Struct, frozen=True):
    """One router now, as in a snapshot, and its newest steps."""

    counts: dict[str, int]
    queues: Queues
    workers: list[LiveWorker]
    requests: list[LiveRequest]
    num_hidden: int
    #: Steps in the router's life until now.
    position: float
    #: Of the histograms in ``steps``; steps with other bounds cannot be added.
    bounds_s: dict[str, tuple[float, ...]]
    steps: list[Step]
    #: Requests that are over, each with the seconds since its end, newest first.
    ended: list[tuple[float, EndedRequest]] = []


def take_part(services: Services, recorder: Recorder, num_steps: int = 0) -> Part:
    """This router now, with its newest ``num_steps`` steps. All ages are of one moment, so that they can be ordered."""
    now_s = asyncio.get_running_loop().time()
    exchanges = tuple(services.active)
    shown, num_hidden = oldest_and_newest(exchanges)
    history = recorder.history
    return Part(
        counts={str(state): count for state, count in services.active.count().items()},
        queues=Queues(
            prefill=Queue(len(services.prefill_queue), _oldest_ms(exchanges, State.QUEUED, now_s)),
            held=Queue(len(services.held_queue), _oldest_ms(exchanges, State.HELD, now_s)),
        ),
        workers=[_worker(worker) for worker in services.pool],
        requests=[_request(services, x, now_s) for x in shown],
        num_hidden=num_hidden,
        position=position(history.num_steps, history.age_s(recorder.now_s)),
        bounds_s=dict(history.bounds),
        steps=[summed.step for summed in history][-num_steps:] if num_steps else [],
        ended=services.ended.newest(recorder.now_s, MAX_ENDED),
    )


def oldest_and_newest(requests: Sequence[T]) -> tuple[Sequence[T], int]:
    """Of many in order of arrival those that are listed, and how many are not."""
    if len(requests) <= MAX_LISTED:
        return requests, 0
    return [*requests[: MAX_LISTED // 2], *requests[-MAX_LISTED // 2 :]], len(requests) - MAX_LISTED


def _in_state_ms(x: Exchange, now_s: float) -> float:
    return round((x.progress.age_s(now_s) - sum(x.progress.spent_s.values())) * 1e3, 1)


def _oldest_ms(exchanges: Sequence[Exchange], state: State, now_s: float) -> float | None:
    return max((_in_state_ms(x, now_s) for x in exchanges if x.progress.state is state), default=None)


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
        engine_id=worker.engine_id,
        url=worker.url,
        compatibility_hash=worker.compatibility_hash,
        weights_fingerprint=worker.weights_fingerprint,
        breaker=str(worker.breaker.state),
        breaker_failures=worker.breaker.num_failures,
        in_flight=worker.in_flight,
        running=load.running,
        waiting=load.waiting,
        reading=load.reading,
        block_size=worker.block_size,
        peer_errors=load.peer_errors,
    )


def _request(services: Services, x: Exchange, now_s: float) -> LiveRequest:
    return LiveRequest(
        id=x.request_id,
        state=str(x.progress.state),
        model=x.ask.model[:MAX_TEXT_CHARS],
        user=x.ask.user[:MAX_TEXT_CHARS],
        stream=x.ask.stream,
        age_ms=round(x.progress.age_s(now_s) * 1e3, 1),
        in_state_ms=_in_state_ms(x, now_s),
        phases_ms={str(state): round(seconds * 1e3, 1) for state, seconds in x.progress.spent_s.items()},
        prefill_worker=x.prefill_worker.worker_id if x.prefill_worker else None,
        decode_worker=x.decode_worker.worker_id if x.decode_worker else None,
        lease_remaining_ms=services.leases.remaining_ms(x.engine_id, x.lease_id) if x.lease_id else None,
        num_tokens=x.num_tokens,
        router=services.router_id,
        endpoint=x.ask.path,
        priority=x.ask.priority,
        lease_id=x.lease_id or None,
        num_prefills=x.attempts.num_prefills,
        num_retries=x.attempts.num_retries,
        num_resumed=x.attempts.num_migrations,
        dead_engines=list(x.attempts.dead_engines),
        client_id=x.reply.client_id or None,
        last_error=x.attempts.last_error.message[:MAX_ERROR_CHARS] if x.attempts.last_error else None,
    )
