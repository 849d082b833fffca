"""The application behind the internal port. ``peers.listener`` has already checked the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from pydantic import BaseModel

from baton_serve.router.apps.group_metrics import metrics_state_routes
from baton_serve.router.apps.internal_routes import internal_routes
from baton_serve.router.dashboard.routes import live_share_routes
from baton_serve.router.edge.error_pages import use_our_errors

if TYPE_CHECKING:
    from baton_serve.router.admin import LocalRouter
    from baton_serve.router.dashboard.recorder import HistoryRecorder
    from baton_serve.router.parts import Requests, Workers
    from baton_serve.router.telemetry.metrics.metrics import RouterCollector


class InternalHealth(BaseModel):
    """``GET /health``: the process lives."""

    status: str = "ok"
    router_id: str


def internal_app(
    workers: Workers, requests: Requests, here: LocalRouter, numbers: RouterCollector, recorder: HistoryRecorder
) -> FastAPI:
    """The application behind the internal port. What is asked there is about this router alone."""
    app = FastAPI(
        title="Baton router, internal", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    use_our_errors(app)

    @app.head("/health")
    @app.get("/health")
    async def health() -> InternalHealth:
        """Needs no token, so that orchestrators can probe it."""
        return InternalHealth(router_id=here.router_id)

    for routes in (
        internal_routes(here, workers),
        metrics_state_routes(numbers),
        live_share_routes(workers, requests, recorder),
    ):
        app.include_router(routes, prefix="/internal")
    return app
