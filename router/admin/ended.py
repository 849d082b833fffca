"""``/admin/requests/ended``: the requests that ended last, and why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from baton_serve.router.admin.fan_out import FromAllRouters, ask_all

if TYPE_CHECKING:
    from baton_serve.router.services import Services

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


class LocalEnded(BaseModel):
    """Ended requests of one router, newest first."""

    ended: list[EndedView]


class EndedList(LocalEnded, FromAllRouters):
    """Ended requests of all routers, newest first; a bounded number of each outcome."""


def local_ended(services: Services) -> LocalEnded:
    """The requests of this router that ended last."""
    newest = services.ended.newest(asyncio.get_running_loop().time())
    return LocalEnded(
        ended=[
            EndedView(ended_ms_ago=round(ago_s * 1e3, 1), **msgspec.structs.asdict(ended)) for ago_s, ended in newest
        ]
    )


def ended_routes(services: Services) -> APIRouter:
    """The route of the listing."""
    api = APIRouter()

    @api.get("/requests/ended")
    async def ended(
        outcome: Annotated[Outcome | None, Query(description="Only those that ended so.")] = None,
    ) -> EndedList:
        """The requests that ended last, of all routers."""
        heard = await ask_all(services.peers, LocalEnded, "GET", "/internal/requests/ended")
        rows = [row for answer in (local_ended(services), *heard.answers) for row in answer.ended]
        rows = [row for row in rows if outcome is None or row.outcome == outcome]
        rows.sort(key=lambda row: row.ended_ms_ago)
        return EndedList(ended=rows, unreachable_routers=heard.unreachable)

    return api
