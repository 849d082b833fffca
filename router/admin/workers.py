"""``/admin/workers``: who there is, and taking one out of the rotation and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic import BaseModel, Field

from protocol.errors import NotFoundError
from router.admin.worker_view import WorkerView, view_worker
from router.worker_calls import tell_worker

if TYPE_CHECKING:
    from router.services import Services
    from router.workers import Worker

#: Ids of static workers are their URLs, so they may contain slashes.
_ONE = "/workers/{worker_id:path}"


class WorkerList(BaseModel):
    """Known workers."""

    workers: list[WorkerView]


class DrainAnswer(BaseModel):
    """How a worker stands after ``drain`` or ``resume``."""

    id: str
    draining: bool
    told: bool = Field(
        description="The worker knows, so it holds for all routers. False: no internal port is known, only this router."
    )


def worker_routes(services: Services) -> APIRouter:
    """Listing, draining, resuming."""
    api = APIRouter()
    pool = services.pool

    @api.get("/workers")
    async def workers() -> WorkerList:
        """Workers, their load and their health."""
        return WorkerList(workers=[view_worker(worker) for worker in pool])

    @api.post(f"{_ONE}/drain")
    async def drain(worker_id: str) -> DrainAnswer:
        """Nothing new is sent to it; what it has is finished. Left out here at once, also if it cannot be told: 502."""
        worker = _known(services, worker_id)
        pool.leave_out(worker)
        told = await tell_worker(services, worker, "drain")
        if told:
            pool.drain_told(worker)
        return DrainAnswer(id=worker_id, draining=True, told=told)

    @api.post(f"{_ONE}/resume")
    async def resume(worker_id: str) -> DrainAnswer:
        """It is sent work again. One that cannot be told (502) or has to leave (409) stays as it is."""
        worker = _known(services, worker_id)
        told = await tell_worker(services, worker, "resume")
        pool.take_back(worker)
        return DrainAnswer(id=worker_id, draining=False, told=told)

    return api


def _known(services: Services, worker_id: str) -> Worker:
    worker = services.pool.get(worker_id)
    if worker is None:
        raise NotFoundError("No worker has that id.", code="worker_not_found")
    return worker
