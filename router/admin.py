"""The admin REST: what runs, abort it, who the workers are, which leases are kept. On a token of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from protocol.errors import BadRequestError, CancelledByAdminError, NotFoundError
from protocol.worker import Role
from router.lease_view import LeaseView, view_leases
from router.request import State
from router.workers import Worker

if TYPE_CHECKING:
    from router.auth import AdminKeys
    from router.exchange import Exchange
    from router.lease_view import LeaseListing
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


class HandshakesView(BaseModel):
    """How far a worker has come with the engines it reads from."""

    connecting: int
    connected: int
    failed: int = Field(description="Not met, lost since, or not answering reads.")
    errors: dict[str, str] = Field(description="Why, by engine id; the newest few.")


class WorkerView(BaseModel):
    """One known worker."""

    id: str
    url: str
    role: Role
    engine_id: str
    models: list[str] | None = Field(description="null: not told yet.")
    tp: int = Field(description="Ranks of its engine.")
    compatibility_hash: str = Field(description="Only workers with equal hashes are paired.")
    healthy: bool
    draining: bool
    num_failures: int
    in_flight: int = Field(description="Requests sent by this router and not over.")
    occupied: int = Field(description="Requests on the worker as far as this router knows.")
    limit: int = Field(description="Requests at once that this router allows.")
    running: int
    waiting: int
    reading: int
    free_blocks: int
    cached_blocks: int
    pinned_blocks: int
    leased_blocks: int
    leases: int
    handshakes: HandshakesView


class WorkerList(BaseModel):
    """Known workers."""

    workers: list[WorkerView]


class LeaseList(BaseModel):
    """Leases."""

    leases: list[LeaseView]


def admin_router(services: Services, listing: LeaseListing, keys: AdminKeys) -> APIRouter:
    """All of ``/admin``."""
    api = APIRouter(prefix="/admin", tags=["admin"], dependencies=[Depends(keys.guard)])

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

    @api.get("/workers")
    async def workers() -> WorkerList:
        """Workers, their load and their health."""
        return WorkerList(workers=[_view_worker(worker) for worker in services.pool])

    @api.get("/leases")
    async def leases(engine: Annotated[str | None, Field(description="Only of this engine.")] = None) -> LeaseList:
        """Every lease of the known engines, and which request of this router keeps it."""
        engines = [engine] if engine else sorted({worker.engine_id for worker in services.pool if worker.engine_id})
        return LeaseList(leases=await view_leases(services.active, listing, engines))

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


def _view_worker(worker: Worker) -> WorkerView:
    load = worker.load
    return WorkerView(
        id=worker.worker_id,
        url=worker.url,
        role=worker.role,
        engine_id=worker.engine_id,
        models=None if worker.models is None else list(worker.models),
        tp=worker.tp,
        compatibility_hash=worker.compatibility_hash,
        healthy=worker.healthy,
        draining=load.draining,
        num_failures=worker.num_failures,
        in_flight=worker.in_flight,
        occupied=worker.occupied,
        limit=worker.limit,
        running=load.running,
        waiting=load.waiting,
        reading=load.reading,
        free_blocks=load.free_blocks,
        cached_blocks=load.cached_blocks,
        pinned_blocks=load.pinned_blocks,
        leased_blocks=load.leased_blocks,
        leases=load.leases,
        handshakes=HandshakesView(
            connecting=load.peers_connecting,
            connected=load.peers_connected,
            failed=load.peers_failed,
            errors=load.peer_errors,
        ),
    )
