"""One live request as ``/admin/requests`` shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from baton_serve.core.protocol.request_ids import owner_of
from baton_serve.router.request.states import State

if TYPE_CHECKING:
    from baton_serve.router.request.facts import RequestFacts


class RequestView(BaseModel):
    """One live request."""

    id: str
    client_id: str | None = Field(
        None, description="What its client calls it: `x-client-request-id` or `x-request-id`."
    )
    router: str = Field(description="Id of the router that has it.")
    state: State = Field(description="queued for a P, prefilling, held for a D, read by D, decoding; or how it ended.")
    age_ms: float = Field(description="Since it arrived, milliseconds.")
    endpoint: str
    model: str
    user: str
    stream: bool
    priority: int
    prefill_worker: str | None
    decode_worker: str | None
    lease_id: str | None
    lease_remaining_ms: int | None = Field(
        description="Until P would free the blocks without a renewal; null also while Redis is away and only P knows."
    )
    num_tokens: int = Field(description="Tokens so far; streams only.")
    phases_ms: dict[str, float] = Field(description="Time spent in the states that it has left.")


def view_request(facts: RequestFacts) -> RequestView:
    """The view of one request."""
    return RequestView(
        id=facts.id,
        client_id=facts.client_id,
        router=owner_of(facts.id),
        state=facts.state,
        age_ms=round(facts.age_s * 1e3, 1),
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
        phases_ms={str(state): round(seconds * 1e3, 2) for state, seconds in facts.spent_s.items()},
    )
