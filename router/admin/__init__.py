"""The admin REST, guarded by its own token: list and abort requests, why they ended; workers, routers and leases.

The router that an operator asks answers for all routers: it asks the others for their parts (``local``).
"""

from __future__ import annotations

from fastapi import APIRouter, Depends

from baton_serve.core.leases.store import LeaseStore
from baton_serve.router.admin.leases import lease_routes
from baton_serve.router.admin.local import LocalRouter
from baton_serve.router.admin.requests import request_routes
from baton_serve.router.admin.routers import router_routes
from baton_serve.router.admin.workers import worker_routes
from baton_serve.router.edge.auth import AdminKeys
from baton_serve.router.parts import Workers
from baton_serve.router.peers.port import PeerRouters

__all__ = ["LocalRouter", "admin_router"]


def admin_router(
    here: LocalRouter, workers: Workers, peers: PeerRouters, store: LeaseStore, keys: AdminKeys, *, only_tls: bool
) -> APIRouter:
    """The routes of ``/admin``. ``only_tls``: see ``worker_routes``."""
    api = APIRouter(prefix="/admin", tags=["admin"], dependencies=[Depends(keys.guard)])
    for routes in (
        request_routes(here, peers, workers.pool),
        worker_routes(workers, peers, only_tls=only_tls),
        lease_routes(here, peers, workers.pool, store),
        router_routes(peers),
    ):
        api.include_router(routes)
    return api
