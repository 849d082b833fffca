"""The application behind the internal port. ``peers.listener`` has already checked the token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, FastAPI, Query, Response
from pydantic import BaseModel

from baton_serve.router.admin import LocalRouter
from baton_serve.router.admin.shared_workers import shared_worker_routes
from baton_serve.router.apps.group_metrics import local_families
from baton_serve.router.dashboard.history import NUM_STEPS
from baton_serve.router.dashboard.recorder import HistoryRecorder
from baton_serve.router.dashboard.share import local_share
from baton_serve.router.edge.error_pages import use_our_errors
from baton_serve.router.parts import Requests, Workers

if TYPE_CHECKING:
    from prometheus_client.registry import Collector


class InternalHealth(BaseModel):
    """``GET /health``: the process lives."""

    status: str = "ok"
    router_id: str


def internal_app(
    workers: Workers, requests: Requests, here: LocalRouter, numbers: Collector, recorder: HistoryRecorder
) -> FastAPI:
    """The application behind the internal port. What is asked there is about this router alone: no route calls other
    routers in turn.
    """
    app = FastAPI(
        title="Baton router, internal", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    use_our_errors(app)

    @app.head("/health")
    @app.get("/health")
    async def health() -> InternalHealth:
        """Needs no token, so that orchestrators can probe it."""
        return InternalHealth(router_id=here.router_id)

    api = APIRouter(prefix="/internal")
    api.get("/state")(here.state)
    api.get("/requests")(here.requests)
    api.get("/requests/ids")(here.ids)
    api.get("/requests/ended")(here.ended)
    api.get("/keepers")(here.keepers)
    api.post("/requests/{request_id}/abort")(here.abort)
    api.post("/abort")(here.abort_matching)
    api.include_router(shared_worker_routes(workers))

    @api.get("/metrics-state")
    async def metrics_state() -> Response:
        """All metrics of this process: its part of the sum over those that share a port."""
        return Response(msgspec.json.encode(local_families(numbers)), media_type="application/json")

    @api.get("/live")
    async def live(num_steps: Annotated[int, Query(ge=0, le=NUM_STEPS)] = 0) -> Response:
        """This router's share of another router's dashboard: its present state, and its newest steps."""
        share = local_share(workers, requests, recorder, num_steps)
        return Response(msgspec.json.encode(share), media_type="application/json")

    app.include_router(api)
    return app
