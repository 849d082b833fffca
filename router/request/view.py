"""One live request as people and programs are shown it: in ``/admin/requests``, on the dashboard, by other routers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from baton_serve.core.protocol.request_ids import owner_of
from baton_serve.router.request.ended import MAX_ERROR_CHARS
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.request.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One live request. What not every version of a router tells has a default."""

    id: str
    client_id: Annotated[
        str | None, Field(description="What its client calls it: `x-client-request-id` or `x-request-id`.")
    ] = None
    router: Annotated[str, Field(description="Id of the router that has it.")]
    state: Annotated[
        State, Field(description="queued for a P, prefilling, held for a D, read by D, decoding; or how it ended.")
    ]
    age_ms: Annotated[float, Field(description="Since it arrived, milliseconds.")]
    in_state_ms: Annotated[float, Field(description="In this state so far, milliseconds.")] = 0.0
    phases_ms: Annotated[dict[str, float], Field(description="Time spent in the states that it has left.")]
    endpoint: str
    model: str
    user: str
    stream: bool
    priority: int
    prefill_worker: str | None
    decode_worker: str | None
    lease_id: str | None
    lease_remaining_ms: Annotated[
        int | None,
        Field(
            description="Until P would free the blocks without a renewal; null also while Redis is away and only P "
            "knows."
        ),
    ]
    num_tokens: Annotated[int, Field(description="Events of its stream so far, nearly one a token; streams only.")]
    num_prefills: Annotated[int, Field(description="Times that its prompt was computed.")] = 0
    num_retries: Annotated[int, Field(description="Legs that were tried again.")] = 0
    num_resumed: Annotated[int, Field(description="Times that another worker went on with its stream.")] = 0
    dead_engines: Annotated[list[str], Field(description="Engines that died with the request on them.")] = field(
        default_factory=list
    )
    last_error: Annotated[str | None, Field(description="Of the last attempt that failed.")] = None


def view_request(facts: RequestFacts) -> RequestView:
    """The view of one request."""
    return RequestView(
        id=facts.id,
        client_id=facts.client_id,
        router=owner_of(facts.id),
        state=facts.state,
        age_ms=round(facts.age_s * 1e3, 1),
        in_state_ms=round(facts.in_state_s * 1e3, 1),
        phases_ms={str(state): round(seconds * 1e3, 1) for state, seconds in facts.spent_s.items()},
        endpoint=facts.endpoint,
        model=facts.model,
        user=facts.user,
        stream=facts.stream,
        priority=facts.priority,
        prefill_worker=facts.prefill_worker,
        decode_worker=facts.decode_worker,
        lease_id=facts.lease_id or None,
        lease_remaining_ms=facts.lease_remaining_ms,
        num_tokens=facts.num_tokens,
        num_prefills=facts.num_prefills,
        num_retries=facts.num_retries,
        num_resumed=facts.num_migrations,
        dead_engines=list(facts.dead_engines),
        last_error=facts.last_error.message[:MAX_ERROR_CHARS] if facts.last_error else None,
    )
