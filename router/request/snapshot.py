"""The facts of a request, taken from its record when it ends and when live requests are listed; never per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.request.facts import RequestFacts
from router.request.states import LIVE, State

if TYPE_CHECKING:
    from core.protocol.errors import ApiError
    from router.pool import Worker
    from router.request.exchange import Exchange


def facts_of(
    request: Exchange,
    now_s: float,
    ended_in: State | None = None,
    error: ApiError | None = None,
    *,
    is_error_relayed: bool = False,
) -> RequestFacts:
    """The facts of a request at ``now_s`` of the loop's clock; the other arguments are only for one that is over."""
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
        ended_in=ended_in,
        error=error,
        is_error_relayed=is_error_relayed,
    )


def facts_at_end(request: Exchange, before: State, error: ApiError | None, now_s: float) -> RequestFacts:
    """The facts of a request that is over. ``before``: its state when its exit began; ``error``: why it ended."""
    relayed = request.relayed_error if error is None else None
    ended_in = before if before in LIVE else None
    return facts_of(request, now_s, ended_in, error or relayed, is_error_relayed=relayed is not None)


def _id(worker: Worker | None) -> str | None:
    return None if worker is None else worker.worker_id
