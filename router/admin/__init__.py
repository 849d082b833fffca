"""The admin REST, guarded by its own token: list and abort requests, why they ended; workers, routers and leases.

The router that an operator asks answers for all routers: it asks the others (``fan_out``) for their parts (``local``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends

from baton_serve.router.admin.ended import ended_routes
from baton_serve.router.admin.leases import lease_routes
from baton_serve.router.admin.request_view import RequestView, view_request
from baton_serve.router.admin.requests import request_routes
from baton_serve.router.admin.routers import router_routes
from baton_serve.router.admin.worker_view import HandshakesView, WorkerView, view_worker
from baton_serve.router.admin.workers import worker_routes

if TYPE_CHECKING:
    from baton_serve.router.admin.lease_view import LeaseListing
    from baton_serve.router.edge.auth import AdminKeys
    from baton_serve.router.services import Services

__all__ = ["HandshakesView", "RequestView", "WorkerView", "admin_router", "view_request", "view_worker"]


def admin_router(services: Services, listing: LeaseListing, keys: AdminKeys) -> APIRouter:
    """The routes of ``/admin``."""
    api = APIRouter(prefix="/admin", tags=["admin"], dependencies=[Depends(keys.guard)])
    for routes in (
        request_routes(services),
        ended_routes(services),
        worker_routes(services),
        lease_routes(services, listing),
        router_routes(services),
    ):
        api.include_router(routes)
    return api
