"""The one place where every request ends, however it does.

``settle`` gives back whatever the request still holds: its place in a queue, its place on a worker (closing the
connection, which is how P or D learns to stop), and P's blocks, also those in an answer that it has not read yet. It
awaits nothing, so no cancellation can come between; what takes time goes on in tasks that others own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from core.process.failpoints import hit
from core.process.log import FACTS
from core.protocol.errors import ApiError
from router.request.ended import ended_request
from router.request.states import LIVE, Event, State

if TYPE_CHECKING:
    from router.request.exchange import Exchange
    from router.services import Services

log = logging.getLogger("baton.router")


class ClientGone(ApiError):
    """The client closed its connection. Nobody reads this error."""

    status = 499
    type = "client_gone"
    code = "client_gone"


def settle(services: Services, request: Exchange, error: ApiError | None) -> None:
    """End the request: ``error`` None when the client has everything, else why not. Later calls do nothing."""
    if services.active.get(request.request_id) is not request:
        return
    hit("router.exit")
    state = request.progress.state
    if not request.progress.over:
        request.on(Event.ABORTED if error is not None and error is request.stop_error else Event.FAILED)
    if request.timer is not None:
        request.timer.cancel()
    request.drop_lease()
    services.active.remove(request)
    services.metrics.ended(request, state, error)
    request.vacate()  # last: it wakes others
    error = error or request.relayed_error
    services.ended.add(asyncio.get_running_loop().time(), ended_request(request, state, error, time.time()))
    if services.settings.log_requests or request.progress.state is State.FAILED:
        _log(request, state, error)
    if request.trace is not None:
        request.trace.end(request, error)


def _log(request: Exchange, state: State, error: ApiError | None) -> None:
    """One line for people, and the same as fields for programs. ``!r``: what others sent stays on the line."""
    facts, tried = _facts(request, state, error), request.attempts
    spent = "".join(f", {phase} {facts[f'{phase}_ms']} ms" for phase in LIVE if facts[f"{phase}_ms"] is not None)
    log.log(
        logging.WARNING if request.progress.state is State.FAILED else logging.INFO,
        "request %s %s after %.1f ms on %s and %s, %s%s, model %r%s%s%s%s%s%s%s",
        request.request_id,
        request.progress.state,
        facts["total_ms"],
        facts["prefill_worker"] or "-",
        facts["decode_worker"] or "-",
        request.ask.path,
        " streamed" if request.ask.stream else "",
        request.ask.model,
        f", the client's {request.reply.client_id!r}" if request.reply.client_id else "",
        "" if facts["tokens"] is None else f", {request.num_tokens} tokens",
        "" if facts["ttft_ms"] is None else f", first after {facts['ttft_ms']} ms",
        spent,
        (f", retries {tried.num_retries}" if tried.num_retries else "")
        + (f", resumed {tried.num_migrations}" if tried.num_migrations else ""),
        f", deaths {facts['deaths']}" if facts["deaths"] else "",
        f", {state}: {facts['reason']}: {facts['error']!r}" if error else "",
        extra={FACTS: facts},
    )


def _facts(request: Exchange, state: State, error: ApiError | None) -> dict[str, object]:
    """All fields, always: None is a phase the request was never in, or what is not known."""
    first_s = request.reply.first_content_s if request.ask.stream else None
    return {
        "request_id": request.request_id,
        "client_request_id": request.reply.client_id or None,
        "state": request.progress.state,
        "ended_in": state if state in LIVE else None,
        "reason": (error.code or error.type) if error else None,
        "error": error.message if error else None,
        "endpoint": request.ask.path,
        "model": request.ask.model,
        "stream": request.ask.stream,
        "prefill_worker": request.prefill_worker.worker_id if request.prefill_worker else None,
        "decode_worker": request.decode_worker.worker_id if request.decode_worker else None,
        "tokens": request.num_tokens if request.ask.stream else None,  # a whole answer is passed on uncounted
        "ttft_ms": None if first_s is None else _ms(first_s - request.progress.started_s),
        "total_ms": _ms(request.age_s()),
        **{f"{phase}_ms": _ms(request.progress.spent_s.get(phase)) for phase in LIVE},
        "retries": request.attempts.num_retries,
        "resumed": request.attempts.num_migrations,
        "deaths": " and ".join(request.attempts.dead_engines) or None,
        "trace_id": request.trace.trace_id if request.trace else None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)
