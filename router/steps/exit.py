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

log = logging.getLogger("baton.router")


class ClientGone(ApiError):
    """The client closed its connection. Nobody reads this error."""

    status = 499
    type = "client_gone"
    code = "client_gone"


def settle(x: Exchange, error: ApiError | None) -> None:
    """End the request: ``error`` None when the client has everything, else why not. Later calls do nothing."""
    if x.services.active.get(x.request_id) is not x:
        return
    hit("router.exit")
    state = x.progress.state
    if not x.progress.over:
        x.on(Event.ABORTED if error is not None and error is x.stop_error else Event.FAILED)
    if x.timer is not None:
        x.timer.cancel()
    x.drop_lease()
    x.services.active.remove(x)
    x.services.metrics.ended(x, state, error)
    x.vacate()  # last: it wakes others
    error = error or x.relayed_error
    x.services.ended.add(asyncio.get_running_loop().time(), ended_request(x, state, error, time.time()))
    if x.services.settings.log_requests or x.progress.state is State.FAILED:
        _log(x, state, error)
    if x.trace is not None:
        x.trace.end(x, error)


def _log(x: Exchange, state: State, error: ApiError | None) -> None:
    """One line for people, and the same as fields for programs. ``!r``: what others sent stays on the line."""
    facts, tried = _facts(x, state, error), x.attempts
    spent = "".join(f", {phase} {facts[f'{phase}_ms']} ms" for phase in LIVE if facts[f"{phase}_ms"] is not None)
    log.log(
        logging.WARNING if x.progress.state is State.FAILED else logging.INFO,
        "request %s %s after %.1f ms on %s and %s, %s%s, model %r%s%s%s%s%s%s%s",
        x.request_id,
        x.progress.state,
        facts["total_ms"],
        facts["prefill_worker"] or "-",
        facts["decode_worker"] or "-",
        x.ask.path,
        " streamed" if x.ask.stream else "",
        x.ask.model,
        f", the client's {x.reply.client_id!r}" if x.reply.client_id else "",
        "" if facts["tokens"] is None else f", {x.num_tokens} tokens",
        "" if facts["ttft_ms"] is None else f", first after {facts['ttft_ms']} ms",
        spent,
        (f", retries {tried.num_retries}" if tried.num_retries else "")
        + (f", resumed {tried.num_migrations}" if tried.num_migrations else ""),
        f", deaths {facts['deaths']}" if facts["deaths"] else "",
        f", {state}: {facts['reason']}: {facts['error']!r}" if error else "",
        extra={FACTS: facts},
    )


def _facts(x: Exchange, state: State, error: ApiError | None) -> dict[str, object]:
    """All fields, always: None is a phase the request was never in, or what is not known."""
    first_s = x.reply.first_content_s if x.ask.stream else None
    return {
        "request_id": x.request_id,
        "client_request_id": x.reply.client_id or None,
        "state": x.progress.state,
        "ended_in": state if state in LIVE else None,
        "reason": (error.code or error.type) if error else None,
        "error": error.message if error else None,
        "endpoint": x.ask.path,
        "model": x.ask.model,
        "stream": x.ask.stream,
        "prefill_worker": x.prefill_worker.worker_id if x.prefill_worker else None,
        "decode_worker": x.decode_worker.worker_id if x.decode_worker else None,
        "tokens": x.num_tokens if x.ask.stream else None,  # a whole answer is passed on uncounted
        "ttft_ms": None if first_s is None else _ms(first_s - x.progress.started_s),
        "total_ms": _ms(x.age_s()),
        **{f"{phase}_ms": _ms(x.progress.spent_s.get(phase)) for phase in LIVE},
        "retries": x.attempts.num_retries,
        "resumed": x.attempts.num_migrations,
        "deaths": " and ".join(x.attempts.dead_engines) or None,
        "trace_id": x.trace.trace_id if x.trace else None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)
