"""``/admin/requests`` and ``/admin/abort``: what runs, and ending it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from protocol.errors import BadRequestError, CancelledByAdminError, NotFoundError
from router.request import State

if TYPE_CHECKING:
    from router.exchange import Exchange
    from router.services import Services


class RequestView(BaseModel):
    """One live request."""

    id: str
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
    lease_remaining_ms: int | None = Field(description="Until P would free the blocks without a renewal.")
    num_tokens: int = Field(description="Tokens so far; streams only.")
    phases_ms: dict[str, float] = Field(description="Time spent in the states that it has left.")


class RequestList(BaseModel):
    """Live requests, oldest first."""

    requests: list[RequestView]


class AbortFilter(BaseModel):
    """Which requests to abort: those that match every field given. ``{"all": true}`` for all of them."""

    model_config = ConfigDict(extra="forbid")

    state: State | None = None
    worker: str | None = Field(None, description="Id of the prefill or decode worker.")
    model: str | None = None
    user: str | None = None
    older_than_s: float | None = Field(None, ge=0, description="Age above which a request matches, seconds.")
    all: bool = False


class Aborted(BaseModel):
    """The requests that were told to end."""

    aborted: list[str]


def request_routes(services: Services) -> APIRouter:
    """Listing, aborting one, aborting all that match."""
    api = APIRouter()

    @api.get("/requests")
    async def requests() -> RequestList:
        """Live requests of this router."""
        return RequestList(requests=[_view_request(x) for x in services.active])

    @api.post("/requests/{request_id}/abort")
    async def abort(request_id: str) -> Aborted:
        """End one request now, in whatever state it is."""
        x = services.active.get(request_id)
        if x is None or not x.stop(_cancelled()):
            raise NotFoundError("No live request has that id.", code="request_not_found")
        return Aborted(aborted=[x.request_id])

    @api.post("/abort")
    async def abort_matching(wanted: AbortFilter) -> Aborted:
        """End every request that matches."""
        if wanted == AbortFilter():
            raise BadRequestError('An empty filter must be explicit: {"all": true}.', code="empty_filter")
        return Aborted(aborted=[x.request_id for x in services.active if _matches(x, wanted) and x.stop(_cancelled())])

    def _view_request(x: Exchange) -> RequestView:
        remaining_ms = services.leases.remaining_ms(x.engine_id, x.lease_id) if x.lease_id else None
        return view_request(x, remaining_ms)

    return api


def _cancelled() -> CancelledByAdminError:
    return CancelledByAdminError("The request was aborted by an administrator.")


def _matches(x: Exchange, wanted: AbortFilter) -> bool:
    workers = {worker.worker_id for worker in (x.prefill_worker, x.decode_worker) if worker is not None}
    return (
        (wanted.state is None or wanted.state is x.progress.state)
        and (wanted.worker is None or wanted.worker in workers)
        and (wanted.model is None or wanted.model == x.ask.model)
        and (wanted.user is None or wanted.user == x.ask.user)
        and (wanted.older_than_s is None or x.age_s() > wanted.older_than_s)
    )


def view_request(x: Exchange, remaining_ms: int | None) -> RequestView:
    """One request for people."""
    return RequestView(
        id=x.request_id,
        state=x.progress.state,
        age_ms=round(x.age_s() * 1e3, 1),
        endpoint=x.ask.path,
        model=x.ask.model,
        user=x.ask.user,
        stream=x.ask.stream,
        priority=x.ask.priority,
        prefill_worker=x.prefill_worker.worker_id if x.prefill_worker else None,
        decode_worker=x.decode_worker.worker_id if x.decode_worker else None,
        lease_id=x.lease_id or None,
        lease_remaining_ms=remaining_ms,
        num_tokens=x.num_tokens,
        phases_ms={str(state): round(seconds * 1e3, 2) for state, seconds in x.progress.spent_s.items()},
    )
