"""What ``GET /admin/live`` sends; docs/dashboard.md explains each field, and a test compares the two."""

from __future__ import annotations

import msgspec

from baton_serve.router.pool.lost import LostWorker
from baton_serve.router.request.ended import EndedRequest


class Blocks(msgspec.Struct, frozen=True):
    """A worker's KV blocks by state, as it last reported."""

    free: int
    cached: int
    pinned: int
    leased: int
    total: int


class Handshakes(msgspec.Struct, frozen=True):
    """The numbers of a worker's connections to the engines it reads from, by state."""

    connecting: int
    connected: int
    failed: int


class LiveWorker(msgspec.Struct, frozen=True):
    """One known worker."""

    id: str
    role: str
    tp: int
    #: None: unknown yet.
    models: tuple[str, ...] | None
    healthy: bool
    draining: bool
    occupied: int
    limit: int
    #: None: the worker has not reported its blocks (static workers never do).
    blocks: Blocks | None
    leases: int
    handshakes: Handshakes
    #: Empty: added by URL.
    engine_id: str = ""
    #: Base URL of its public port.
    url: str = ""
    #: Only a P and a D with equal hashes are paired. Empty: unknown.
    compatibility_hash: str = ""
    #: Only workers with equal fingerprints may continue each other's streams. Empty: unknown.
    weights_fingerprint: str = ""
    #: ``closed``, ``open`` or ``half_open``: whether requests that reached it failed.
    breaker: str = "closed"
    #: Requests that failed on it in a row.
    breaker_failures: int = 0
    #: Requests that this router has sent it and that are not over.
    in_flight: int = 0
    #: Requests inside the worker, as it last reported.
    running: int = 0
    waiting: int = 0
    reading: int = 0
    #: Tokens in a block; 0: unknown.
    block_size: int = 0
    #: Why handshakes failed, by engine id; the newest few.
    peer_errors: dict[str, str] = {}


class LiveRequest(msgspec.Struct, frozen=True):
    """One live request."""

    id: str
    state: str
    model: str
    user: str
    stream: bool
    age_ms: float
    #: Milliseconds in ``state`` so far.
    in_state_ms: float
    #: Milliseconds in each state that it has left.
    phases_ms: dict[str, float]
    prefill_worker: str | None
    decode_worker: str | None
    lease_remaining_ms: int | None
    num_tokens: int
    #: Id of the router that has it.
    router: str
    endpoint: str = ""
    priority: int = 0
    lease_id: str | None = None
    #: How often its prompt was sent to a P, or to a D that prefills.
    num_prefills: int = 0
    #: Legs that were tried again, and how often another worker continued its stream.
    num_retries: int = 0
    num_resumed: int = 0
    #: Engines that died with the request on them.
    dead_engines: list[str] = []
    #: The error of the last attempt that failed; None: none has.
    last_error: str | None = None
    #: The id that its client gave it.
    client_id: str | None = None


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
    workers: list[LiveWorker]
    #: Workers that left without draining.
    lost: list[LostWorker]
    #: Live requests in order of arrival; if there are many, only the oldest and the newest.
    requests: list[LiveRequest]
    #: Live requests that are not in ``requests``.
    num_hidden: int
    #: The newest of each outcome, newest first.
    ended: list[EndedRequest]
    history: LiveHistory
