"""This router's part of what the admin REST answers for all routers. Each path is under ``/internal``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from baton_serve.core.protocol.errors import NotFoundError
from baton_serve.router.admin.answers import (
    LocalAborted,
    LocalEnded,
    LocalIds,
    LocalKeepers,
    LocalRequests,
    LocalState,
)
from baton_serve.router.admin.local import AbortFilter
from baton_serve.router.admin.shared_workers import shared_worker_routes

if TYPE_CHECKING:
    from baton_serve.router.admin.local import LocalRouter
    from baton_serve.router.parts import Workers


def internal_routes(here: LocalRouter, workers: Workers) -> APIRouter:
    """The routes that other routers call. None of them calls other routers in turn."""
    api = APIRouter()

    @api.get("/state")
    async def state() -> LocalState:
        """For checks that a router has released everything."""
        return here.state()

    @api.get("/requests")
    async def requests() -> LocalRequests:
        """See ``GET /admin/requests``."""
        return here.requests()

    @api.get("/requests/ids")
    async def request_ids(beginning: str) -> LocalIds:
        """The ids of this router's live requests with that beginning, which an operator has typed."""
        return here.ids(beginning)

    @api.get("/requests/ended")
    async def ended() -> LocalEnded:
        """See ``GET /admin/requests/ended``."""
        return here.ended()

    @api.get("/keepers")
    async def keepers() -> LocalKeepers:
        """See ``GET /admin/leases``."""
        return here.keepers()

    @api.post("/requests/{request_id}/abort")
    async def abort(request_id: str) -> LocalAborted:
        """End one request; 404 if it is not live."""
        if not here.abort(request_id):
            raise NotFoundError("No live request has that id.", code="request_not_found")
        return LocalAborted([request_id])

    @api.post("/abort")
    async def abort_matching(wanted: AbortFilter) -> LocalAborted:
        """End all requests of this router that match."""
        return here.abort_matching(wanted)

    api.include_router(shared_worker_routes(workers))
    return api
