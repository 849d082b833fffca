"""What observers are told of a request: metrics, log lines, traces, the admin REST and the dashboard.

They are given these facts and never the record, so none of them can change a request or depend on how it is built.
Facts are made when a request ends, and when live requests are listed; never per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from router.request.states import LIVE, State

if TYPE_CHECKING:
    from core.protocol.errors import ApiError
    from router.pool import Worker
    from router.request.exchange import Exchange


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One request at one moment. Seconds are of the event loop's clock."""

    id: str
    #: What its client calls it; None: the client gave no id.
    client_id: str | None
    state: State
    #: Path at which workers serve it.
    endpoint: str
    chat: bool
    model: str
    user: str
    stream: bool
    priority: int
    #: None: as many as fit.
    max_new_tokens: int | None
    #: Ids of the last workers that were sent its legs.
    prefill_worker: str | None
    decode_worker: str | None
    #: The engine that holds its blocks, and the lease under which it does; empty: none.
    engine_id: str
    lease_id: str
    started_s: float
    age_s: float
    #: In the states that it has left, summed over repetitions.
    spent_s: dict[State, float]
    #: Arrival to first content; None: not streamed, or there is none yet.
    ttft_s: float | None
    #: The client has been sent the head of its answer.
    answer_begun: bool
    #: Tokens and chunks that the client of a stream has been sent.
    num_tokens: int
    num_chunks: int
    num_prefills: int
    num_retries: int
    num_migrations: int
    #: Its stream broke, and no other worker has continued it yet.
    is_migrating: bool
    #: Engines that died with the request on them.
    dead_engines: tuple[str, ...]
    #: The error of the last attempt that failed; None: none has.
    last_error: ApiError | None
    trace_id: str | None
    #: The live state in which it ended; None: it is live, or its outcome was noted before its exit (done, or failed
    #: with an error inside D's stream).
    ended_in: State | None = None
    #: Why it ended; None: it is live, or the client has everything.
    error: ApiError | None = None
    #: ``error`` was inside D's stream, which was passed on to the client.
    is_error_relayed: bool = False

    @property
    def in_state_s(self) -> float:
        """How long a live request has been in its state."""
        return self.age_s - sum(self.spent_s.values())


def facts_of(request: Exchange, now_s: float) -> RequestFacts:
    """The facts of a live request, at ``now_s`` of the loop's clock."""
    asked, reply, attempts, progress = request.asked, request.reply, request.attempts, request.progress
    first_s = reply.first_content_s if asked.stream else None
    return RequestFacts(
        id=request.request_id,
        client_id=reply.client_id or None,
        state=progress.state,
        endpoint=asked.path,
        chat=asked.chat,
        model=asked.model,
        user=asked.user,
        stream=asked.stream,
        priority=asked.priority,
        max_new_tokens=asked.max_new_tokens,
        prefill_worker=_id(request.prefill_worker),
        decode_worker=_id(request.decode_worker),
        engine_id=request.engine_id,
        lease_id=request.lease_id,
        started_s=progress.started_s,
        age_s=progress.age_s(now_s),
        spent_s=dict(progress.spent_s),
        ttft_s=None if first_s is None else first_s - progress.started_s,
        answer_begun=reply.started,
        num_tokens=request.num_tokens,
        num_chunks=request.num_chunks,
        num_prefills=attempts.num_prefills,
        num_retries=attempts.num_retries,
        num_migrations=attempts.num_migrations,
        is_migrating=attempts.is_migrating,
        dead_engines=tuple(attempts.dead_engines),
        last_error=attempts.last_error,
        trace_id=None if request.trace is None else request.trace.trace_id,
    )


def facts_at_end(request: Exchange, before: State, error: ApiError | None, now_s: float) -> RequestFacts:
    """The facts of a request that is over. ``before``: its state when its exit began; ``error``: what ended it."""
    relayed = request.relayed_error if error is None else None
    return msgspec.structs.replace(
        facts_of(request, now_s),
        ended_in=before if before in LIVE else None,
        error=error or relayed,
        is_error_relayed=relayed is not None,
    )


def _id(worker: Worker | None) -> str | None:
    return None if worker is None else worker.worker_id
