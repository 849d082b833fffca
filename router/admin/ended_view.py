"""One request that is over as ``/admin/requests/ended`` shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from baton_serve.router.request.ended import EndedRequest

Outcome = Literal["done", "failed", "aborted"]


class EndedView(BaseModel):
    """One request that is over."""

    id: str
    router: str = Field(description="Id of the router that had it.")
    outcome: Outcome
    ended_in: str | None = Field(description="The state that it was in when it failed or was aborted.")
    ended_ms_ago: float = Field(description="Since its end, milliseconds.")
    ended_at: float = Field(description="Unix time in seconds by the clock of its router.")
    status: int | None = Field(description="HTTP status of its error.")
    code: str | None = Field(description="Code of its error, or the type where it has none.")
    error: str | None = Field(description="What the client was told, cut to 200 characters.")
    model: str
    user: str
    endpoint: str
    stream: bool
    prefill_worker: str | None
    decode_worker: str | None
    total_ms: float
    ttft_ms: float | None = Field(description="Arrival to first content; streams only.")
    phases_ms: dict[str, float] = Field(description="Time spent in each state.")
    num_tokens: int | None = Field(description="Streams only.")
    num_retries: int = Field(description="Legs that were tried again.")
    num_resumed: int = Field(description="Times that another worker went on with its stream.")
    dead_engines: list[str] = Field(description="Engines that died with the request on them.")
    trace_id: str | None
    client_id: str | None = Field(description="What its client calls it: `x-client-request-id` or `x-request-id`.")


def view_ended(ago_s: float, ended: EndedRequest) -> EndedView:
    """The view of a request that ended ``ago_s`` seconds ago."""
    return EndedView(ended_ms_ago=round(ago_s * 1e3, 1), **msgspec.structs.asdict(ended))
