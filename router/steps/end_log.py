"""The log line of a request that is over: one line for people, and the same facts as fields for programs."""

from __future__ import annotations

import logging

from baton_serve.core.process.log import FACTS
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.request.states import LIVE

log = logging.getLogger("baton.router")


def log_end(facts: RequestFacts, *, is_warning: bool) -> None:
    """Log the end. ``!r`` keeps text from clients and workers on one line."""
    fields = _fields(facts)
    spent = "".join(f", {phase} {fields[f'{phase}_ms']} ms" for phase in LIVE if fields[f"{phase}_ms"] is not None)
    log.log(
        logging.WARNING if is_warning else logging.INFO,
        "request %s %s after %.1f ms on %s and %s, %s%s, model %r%s%s%s%s%s%s%s",
        facts.id,
        facts.state,
        fields["total_ms"],
        facts.prefill_worker or "-",
        facts.decode_worker or "-",
        facts.endpoint,
        " streamed" if facts.stream else "",
        facts.model,
        f", the client's {facts.client_id!r}" if facts.client_id else "",
        "" if fields["tokens"] is None else f", {facts.num_tokens} tokens",
        "" if fields["ttft_ms"] is None else f", first after {fields['ttft_ms']} ms",
        spent,
        (f", retries {facts.num_retries}" if facts.num_retries else "")
        + (f", resumed {facts.num_migrations}" if facts.num_migrations else ""),
        f", deaths {fields['deaths']}" if fields["deaths"] else "",
        f", {facts.ended_in or facts.state}: {fields['reason']}: {fields['error']!r}" if facts.error else "",
        extra={FACTS: fields},
    )


def _fields(facts: RequestFacts) -> dict[str, object]:
    """Returns all fields, always. None: unknown, or a phase that the request was never in."""
    error = facts.error
    return {
        "request_id": facts.id,
        "client_request_id": facts.client_id,
        "state": facts.state,
        "ended_in": facts.ended_in,
        "reason": (error.code or error.type) if error else None,
        "error": error.message if error else None,
        "endpoint": facts.endpoint,
        "model": facts.model,
        "stream": facts.stream,
        "prefill_worker": facts.prefill_worker,
        "decode_worker": facts.decode_worker,
        "tokens": facts.num_tokens if facts.stream else None,  # the tokens of an unstreamed answer are not counted
        "ttft_ms": _ms(facts.ttft_s),
        "total_ms": _ms(facts.age_s),
        **{f"{phase}_ms": _ms(facts.spent_s.get(phase)) for phase in LIVE},
        "retries": facts.num_retries,
        "resumed": facts.num_migrations,
        "deaths": " and ".join(facts.dead_engines) or None,
        "trace_id": facts.trace_id,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)
