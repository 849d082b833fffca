"""This router's share of what all of them answer, for the internal port; each path is under ``/internal``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from core.protocol.errors import NotFoundError
from router.admin.ended import OwnEnded, own_ended
from router.admin.ids import OwnIds, own_ids
from router.admin.local import (
    AbortFilter,
    OwnAborted,
    OwnKeepers,
    OwnRequests,
    OwnState,
    abort_own,
    abort_own_matching,
    own_keepers,
    own_requests,
    own_state,
)
from router.admin.shared_workers import shared_worker_routes

if TYPE_CHECKING:
    from router.services import Services


def internal_routes(services: Services) -> APIRouter:
    """For other routers only: nothing here asks any further."""
    api = APIRouter()

    @api.get("/state")
    async def state() -> OwnState:
        """For whoever looks whether everything was given back."""
        return own_state(services)

    @api.get("/requests")
    async def requests() -> OwnRequests:
        """See ``GET /admin/requests``."""
        return own_requests(services)

    @api.get("/requests/ids")
    async def request_ids(beginning: str) -> OwnIds:
        """For the other routers: which request somebody means who types the beginning of an id."""
        return own_ids(services, beginning)

    @api.get("/requests/ended")
    async def ended() -> OwnEnded:
        """See ``GET /admin/requests/ended``."""
        return own_ended(services)

    @api.get("/keepers")
    async def keepers() -> OwnKeepers:
        """See ``GET /admin/leases``."""
        return own_keepers(services)

    @api.post("/requests/{request_id}/abort")
    async def abort(request_id: str) -> OwnAborted:
        """404 where it is over."""
        if not abort_own(services, request_id):
            raise NotFoundError("No live request has that id.", code="request_not_found")
        return OwnAborted(aborted=[request_id])

    @api.post("/abort")
    async def abort_matching(wanted: AbortFilter) -> OwnAborted:
        """End what matches here."""
        return abort_own_matching(services, wanted)

    api.include_router(shared_worker_routes(services))
    return api
