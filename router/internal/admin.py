"""This router's part of what the admin REST answers for all routers. Each path is under ``/internal``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from baton_serve.core.protocol.errors import NotFoundError
from baton_serve.router.admin.ended import LocalEnded, local_ended
from baton_serve.router.admin.ids import LocalIds, local_ids
from baton_serve.router.admin.local import (
    AbortFilter,
    LocalAborted,
    LocalKeepers,
    LocalRequests,
    LocalState,
    abort_local,
    abort_local_matching,
    local_keepers,
    local_requests,
    local_state,
)
from baton_serve.router.admin.shared_workers import shared_worker_routes

if TYPE_CHECKING:
    from baton_serve.router.services import Services


def internal_routes(services: Services) -> APIRouter:
    """The routes that other routers call. None of them calls other routers in turn."""
    api = APIRouter()

    @api.get("/state")
    async def state() -> LocalState:
        """For checks that a router has released everything."""
        return local_state(services)

    @api.get("/requests")
    async def requests() -> LocalRequests:
        """See ``GET /admin/requests``."""
        return local_requests(services)

    @api.get("/requests/ids")
    async def request_ids(beginning: str) -> LocalIds:
        """The ids of this router's live requests with that beginning, which an operator has typed."""
        return local_ids(services, beginning)

    @api.get("/requests/ended")
    async def ended() -> LocalEnded:
        """See ``GET /admin/requests/ended``."""
        return local_ended(services)

    @api.get("/keepers")
    async def keepers() -> LocalKeepers:
        """See ``GET /admin/leases``."""
        return local_keepers(services)

    @api.post("/requests/{request_id}/abort")
    async def abort(request_id: str) -> LocalAborted:
        """End one request; 404 if it is not live."""
        if not abort_local(services, request_id):
            raise NotFoundError("No live request has that id.", code="request_not_found")
        return LocalAborted(aborted=[request_id])

    @api.post("/abort")
    async def abort_matching(wanted: AbortFilter) -> LocalAborted:
        """End all requests of this router that match."""
        return abort_local_matching(services, wanted)

    api.include_router(shared_worker_routes(services))
    return api
