"""One router's share of a snapshot: shown by itself, and sent to other routers by ``GET /internal/live``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from baton_serve.router.dashboard.history import Step
from baton_serve.router.dashboard.merged_history import position
from baton_serve.router.dashboard.recorder import HistoryRecorder
from baton_serve.router.dashboard.schema import Queue, Queues
from baton_serve.router.parts import Requests, Workers
from baton_serve.router.pool.lost import LostWorker
from baton_serve.router.pool.view import WorkerView, view_worker
from baton_serve.router.request.ended import MAX_TEXT_CHARS, EndedRequest
from baton_serve.router.request.states import State
from baton_serve.router.request.view import RequestView, view_request

T = TypeVar("T")

#: Most live requests that are listed: half of them the oldest, half the newest.
MAX_LISTED = 100
#: Most ended requests that are listed, per outcome.
MAX_ENDED = 25


class RouterShare(msgspec.Struct, frozen=True):
    """One router's present state, as in a snapshot, and its newest steps."""

    counts: dict[str, int]
    queues: Queues
    workers: list[WorkerView]
    requests: list[RequestView]
    num_hidden: int
    #: Steps in the router's life until now.
    position: float
    #: The bounds of the histograms in ``steps``; steps with other bounds cannot be added.
    bounds_s: dict[str, tuple[float, ...]]
    steps: list[Step]
    #: Ended requests, newest first.
    ended: list[EndedRequest] = []
    lost: list[LostWorker] = []


def local_share(workers: Workers, requests: Requests, recorder: HistoryRecorder, num_steps: int = 0) -> RouterShare:
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
        workers=[view_worker(worker) for worker in workers.pool],
        requests=[_shown(view_request(facts)) for facts in active.facts(now_s, shown)],
        num_hidden=num_hidden,
        position=position(history.num_steps, history.age_s(recorder.now_s)),
        bounds_s=dict(history.bounds),
        steps=list(history)[-num_steps:] if num_steps else [],
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


def _shown(request: RequestView) -> RequestView:
    """A copy with long names cut: the client chose them, and a hundred views are sent twice a second."""
    return replace(request, model=request.model[:MAX_TEXT_CHARS], user=request.user[:MAX_TEXT_CHARS])
