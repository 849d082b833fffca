"""One live request as ``/admin/requests`` shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from core.protocol.router import owner_of
from router.request.states import State

if TYPE_CHECKING:
    from router.request.exchange import Exchange


class RequestView(BaseModel):
    """One live request."""

    id: str
    client_id: str | None = Field(
        None, description="What its client calls it: `x-client-request-id` or `x-request-id`."
    )
    router: str = Field(description="Id of the router that has it.")
    state: State
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


def view_request(request: Exchange, remaining_ms: int | None) -> RequestView:
    """One request for people."""
    return RequestView(
        id=request.request_id,
        client_id=request.reply.client_id or None,
        router=owner_of(request.request_id),
        state=request.progress.state,
        age_ms=round(request.age_s() * 1e3, 1),
        endpoint=request.ask.path,
        model=request.ask.model,
        user=request.ask.user,
        stream=request.ask.stream,
        priority=request.ask.priority,
        prefill_worker=request.prefill_worker.worker_id if request.prefill_worker else None,
        decode_worker=request.decode_worker.worker_id if request.decode_worker else None,
        lease_id=request.lease_id or None,
        lease_remaining_ms=remaining_ms,
        num_tokens=request.num_tokens,
        phases_ms={str(state): round(seconds * 1e3, 2) for state, seconds in request.progress.spent_s.items()},
    )
