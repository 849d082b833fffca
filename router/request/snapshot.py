"""The facts of a request, taken from its record when it ends and when live requests are listed; never per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from baton_serve.router.request.choices.whole import WholeRequest
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.request.states import LIVE, State

if TYPE_CHECKING:
    from baton_serve.core.protocol.errors import ApiError
    from baton_serve.router.pool import Worker
    from baton_serve.router.request.exchange import Exchange, LiveRequest


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
        endpoint=asked.endpoint,
        chat=asked.chat,
        model=asked.model,
        user=asked.user,
        stream=asked.stream,
        priority=asked.priority,
        max_new_tokens=asked.max_new_tokens,
        prefill_worker=_id(request.prefill_worker),
        decode_worker=_id(request.decode_worker),
        engine_id=request.held.engine_id,
        lease_id=request.held.lease_id,
        lease_remaining_ms=None if request.held.lease is None else request.held.lease.remaining_ms(),
        started_s=progress.started_s,
        age_s=progress.age_s(now_s),
        spent_s=dict(progress.spent_s),
        ttft_s=None if first_s is None else first_s - progress.started_s,
        answer_begun=reply.started,
        num_tokens=progress.num_tokens,
        num_chunks=progress.num_chunks,
        num_prefills=attempts.num_computed,
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


def facts_of_whole(
    whole: WholeRequest,
    now_s: float,
    ended_in: State | None = None,
    error: ApiError | None = None,
    *,
    is_error_relayed: bool = False,
) -> RequestFacts:
    """The facts of a request for several answers.

    Counts are sums over the choices. The lease is one that a choice holds. All else is taken from the first choice.
    """
    every = [facts_of(one, now_s) for one in whole.exchanges]
    holder = next((one for one in every if one.lease_id), every[0])
    first_s = whole.reply.first_content_s if whole.asked.stream else None
    return msgspec.structs.replace(
        every[0],
        id=whole.request_id,
        state=whole.state,
        engine_id=holder.engine_id,
        lease_id=holder.lease_id,
        lease_remaining_ms=holder.lease_remaining_ms,
        started_s=whole.started_s,
        age_s=now_s - whole.started_s,
        ttft_s=None if first_s is None else first_s - whole.started_s,
        answer_begun=whole.reply.started,
        num_tokens=sum(one.num_tokens for one in every),
        num_chunks=sum(one.num_chunks for one in every),
        num_prefills=sum(one.num_prefills for one in every),
        num_retries=sum(one.num_retries for one in every),
        num_migrations=sum(one.num_migrations for one in every),
        is_migrating=any(one.is_migrating for one in every),
        dead_engines=tuple(dict.fromkeys(engine for one in every for engine in one.dead_engines)),
        last_error=next((one.last_error for one in every if one.last_error is not None), None),
        trace_id=None if whole.trace is None else whole.trace.trace_id,
        ended_in=ended_in,
        error=error,
        is_error_relayed=is_error_relayed,
    )


def facts(
    request: LiveRequest,
    now_s: float,
    ended_in: State | None = None,
    error: ApiError | None = None,
    *,
    is_error_relayed: bool = False,
) -> RequestFacts:
    """The facts of a request for one answer or for several; see ``facts_of``."""
    if isinstance(request, WholeRequest):
        return facts_of_whole(request, now_s, ended_in, error, is_error_relayed=is_error_relayed)
    return facts_of(request.exchanges[0], now_s, ended_in, error, is_error_relayed=is_error_relayed)


def facts_at_end(request: LiveRequest, before: State, error: ApiError | None, now_s: float) -> RequestFacts:
    """The facts of a request that is over. ``before``: its state when its exit began; ``error``: why it ended."""
    relayed = request.relayed_error if error is None else None
    ended_in = before if before in LIVE else None
    return facts(request, now_s, ended_in, error or relayed, is_error_relayed=relayed is not None)


def _id(worker: Worker | None) -> str | None:
    return None if worker is None else worker.worker_id
