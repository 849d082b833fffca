"""``/admin/leases``: the blocks that are kept for somebody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from router.lease_view import LeaseView, view_leases

if TYPE_CHECKING:
    from router.lease_view import LeaseListing
    from router.services import Services


class LeaseList(BaseModel):
    """Leases."""

    leases: list[LeaseView]


def lease_routes(services: Services, listing: LeaseListing) -> APIRouter:
    """Listing."""
    api = APIRouter()

    @api.get("/leases")
    async def leases(engine: Annotated[str | None, Field(description="Only of this engine.")] = None) -> LeaseList:
        """Every lease of the known engines, and which request of this router keeps it."""
        engines = [engine] if engine else sorted({worker.engine_id for worker in services.pool if worker.engine_id})
        return LeaseList(leases=await view_leases(services.active, listing, engines))

    return api
