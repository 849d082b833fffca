"""One router's share of a snapshot: shown by itself, and sent to other routers by ``GET /internal/live``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import msgspec

from baton_serve.router.dashboard.history import Step
from baton_serve.router.dashboard.merged_history import position
from baton_serve.router.dashboard.schema import Blocks, Handshakes, LiveRequest, LiveWorker, Queue, Queues
from baton_serve.router.pool.lost import LostWorker
from baton_serve.router.request.ended import MAX_ERROR_CHARS, MAX_TEXT_CHARS, EndedRequest
from baton_serve.router.request.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton_serve.router.dashboard.recorder import HistoryRecorder
    from baton_serve.router.parts import Requests, Workers
    from baton_serve.router.pool import Worker
    from baton_serve.router.request.facts import RequestFacts

T = TypeVar("T")

#: Most live requests that are listed: half of them the oldest, half the newest.
MAX_LISTED = 100
#: Most ended requests that are listed, per outcome.
MAX_ENDED = 25


class RouterShare(msgspec.Struct, frozen=True):
    """One router's present state, as in a snapshot, and its newest steps."""

    counts: dict[str, int]
    queues: Queues
    workers: list[LiveWorker]
    requests: list[LiveRequest]
    num_hidden: int
    #: Steps in the router's life until now.
    position: float
    #: The bounds of the histograms in ``steps``; steps with other bounds cannot be added.
    bounds_s: dict[str, tuple[float, ...]]
    steps: list[Step]
    #: Ended requests, each with the seconds since its end, newest first.
    ended: list[tuple[float, EndedRequest]] = []
    lost: list[LostWorker] = []


def local_share(
    workers: Workers, requests: Requests, recorder: HistoryRecorder, router_id: str, num_steps: int = 0
) -> RouterShare:
    """This router's state, with its newest ``num_steps`` steps. All ages are of one moment, so they can be compared."""
    now_s = asyncio.get_running_loop().time()
    active, queues = requests.active, requests.queues
    shown, num_hidden = oldest_and_newest(active.ids())
    history = recorder.history
    return RouterShare(
        counts={str(state): count for state, count in active.count().items()},
        queues=Queues(
            prefill=Queue(len(queues.prefill), _longest_ms(requests, State.QUEUED, now_s)),
            held=Queue(len(queues.held), _longest_ms(requests, State.HELD, now_s)),
        ),
        workers=[_worker(worker) for worker in workers.pool],
        requests=[_request(router_id, facts) for facts in active.facts(now_s, shown)],
        num_hidden=num_hidden,
        position=position(history.num_steps, history.age_s(recorder.now_s)),
        bounds_s=dict(history.bounds),
        steps=[summed.step for summed in history][-num_steps:] if num_steps else [],
        ended=requests.ended.newest(recorder.now_s, MAX_ENDED),
        lost=workers.lost.all(),
    )


def oldest_and_newest(requests: Sequence[T]) -> tuple[Sequence[T], int]:
    """The items to list, out of all in order of arrival, and the number of those not listed."""
    if len(requests) <= MAX_LISTED:
        return requests, 0
    return [*requests[: MAX_LISTED // 2], *requests[-MAX_LISTED // 2 :]], len(requests) - MAX_LISTED


def _longest_ms(requests: Requests, state: State, now_s: float) -> float | None:
    longest_s = requests.active.longest_s(state, now_s)
    return None if longest_s is None else round(longest_s * 1e3, 1)


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


def _request(router_id: str, facts: RequestFacts) -> LiveRequest:
    return LiveRequest(
        id=facts.id,
        state=str(facts.state),
        model=facts.model[:MAX_TEXT_CHARS],
        user=facts.user[:MAX_TEXT_CHARS],
        stream=facts.stream,
        age_ms=round(facts.age_s * 1e3, 1),
        in_state_ms=round(facts.in_state_s * 1e3, 1),
        phases_ms={str(state): round(seconds * 1e3, 1) for state, seconds in facts.spent_s.items()},
        prefill_worker=facts.prefill_worker,
        decode_worker=facts.decode_worker,
        lease_remaining_ms=facts.lease_remaining_ms,
        num_tokens=facts.num_tokens,
        router=router_id,
        endpoint=facts.endpoint,
        priority=facts.priority,
        lease_id=facts.lease_id or None,
        num_prefills=facts.num_prefills,
        num_retries=facts.num_retries,
        num_resumed=facts.num_migrations,
        dead_engines=list(facts.dead_engines),
        client_id=facts.client_id,
        last_error=facts.last_error.message[:MAX_ERROR_CHARS] if facts.last_error else None,
    )
