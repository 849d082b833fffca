"""What ``GET /admin/live`` sends; docs/dashboard.md explains each field, and a test compares the two."""

from __future__ import annotations

import msgspec

from baton_serve.router.pool.lost import LostWorker
from baton_serve.router.pool.view import WorkerView
from baton_serve.router.request.ended import EndedRequest
from baton_serve.router.request.view import RequestView


class Queue(msgspec.Struct, frozen=True):
    """One of the two queues."""

    length: int
    #: How long its oldest request has waited, milliseconds; None: it is empty.
    oldest_ms: float | None


class Queues(msgspec.Struct, frozen=True):
    """Requests that wait for a prefill worker with room, and held ones that wait for a decode worker with room."""

    prefill: Queue
    held: Queue


class TimeLines(msgspec.Struct, frozen=True):
    """Lines of a plot, milliseconds; None where nothing was measured."""

    p50_ms: list[float | None]
    p95_ms: list[float | None]
    mean_ms: list[float | None]


class LiveHistory(msgspec.Struct, frozen=True):
    """Columns with one value a step, oldest first."""

    step_s: float
    requests_per_s: list[float | None]
    failed_per_s: list[float | None]
    #: Requests that were answered with an error before they began, e.g. 401, 429 or 503.
    refused_per_s: list[float | None]
    #: The two above by the status of the answer; only statuses that occurred.
    failed_by_status: dict[str, list[float | None]]
    refused_by_status: dict[str, list[float | None]]
    tokens_per_s: list[float | None]
    #: Requests that were live at the end of the step, by state.
    live: dict[str, list[float | None]]
    ttft: TimeLines
    #: Time spent in a state, by state.
    phases: dict[str, TimeLines]
    itl: TimeLines


class LiveRouter(msgspec.Struct, frozen=True):
    """One router on the same Redis."""

    id: str
    #: URL of its API; None for the router that answers, whose URL the reader knows.
    url: str | None
    #: Whether it is the router that sends this snapshot.
    is_this: bool
    #: Why it has not answered; None: it has.
    error: str | None
    #: Its live requests; None: not known.
    num_requests: int | None


class Snapshot(msgspec.Struct, frozen=True):
    """All routers that answer, at one moment."""

    #: Unix seconds, by the router's clock.
    time: float
    lease_duration_ms: int
    routers: list[LiveRouter]
    counts: dict[str, int]
    queues: Queues
    workers: list[WorkerView]
    #: Workers that left without draining.
    lost: list[LostWorker]
    #: Live requests in order of arrival; if there are many, only the oldest and the newest.
    requests: list[RequestView]
    #: Live requests that are not in ``requests``.
    num_hidden: int
    #: The newest of each outcome, newest first.
    ended: list[EndedRequest]
    history: LiveHistory
