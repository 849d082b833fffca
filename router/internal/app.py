"""The application behind the internal port. ``peers.listener`` has already checked the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from pydantic import BaseModel

from baton_serve.router.edge.error_pages import use_our_errors

if TYPE_CHECKING:
    from fastapi import APIRouter

    from baton_serve.router.services import Services


class InternalHealth(BaseModel):
    """``GET /health``: the process lives."""

    status: str = "ok"
    router_id: str


def internal_app(services: Services, *more: APIRouter) -> FastAPI:
    """The application behind the internal port; ``more``: routes of other parts, added under ``/internal``."""
    app = FastAPI(
        title="Baton router, internal", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    use_our_errors(app)

    @app.head("/health")
    @app.get("/health")
    async def health() -> InternalHealth:
        """Needs no token, so that orchestrators can probe it."""
        return InternalHealth(router_id=services.router_id)

    for routes in more:
        app.include_router(routes, prefix="/internal")
    return app
