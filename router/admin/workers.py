"""``/admin/workers``: who there is, taking one out of the rotation and back, and workers that are added by URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, field_validator

from protocol.addresses import worker_url
from protocol.errors import ApiError, NotFoundError
from protocol.worker import Role
from router.admin.worker_view import WorkerView, view_worker
from router.worker_calls import tell_worker

if TYPE_CHECKING:
    from router.services import Services
    from router.workers import Worker

#: Ids of static workers are their URLs, so they may contain slashes.
_ONE = "/workers/{worker_id:path}"


class ConflictError(ApiError):
    """The worker is not one with which that can be done."""

    status = 409
    type = "invalid_request_error"


class NewWorker(BaseModel):
    """A worker that is not in the registry, until this router ends or it is deleted.

    It is sent the internal token only with ``trust_static_workers``: an address may be anybody's engine.
    """

    model_config = ConfigDict(extra="forbid")

    url: str = Field(description="host:port or base URL.")
    role: Role

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        return worker_url(url)


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
    """Listing, draining, resuming, adding, deleting."""
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

    @api.post("/workers", status_code=201)
    async def add(new: NewWorker) -> WorkerView:
        """Add a worker by URL. It is asked for its models; until it has answered, any model is tried there."""
        if any(worker.url == new.url for worker in pool):
            raise ConflictError("There is a worker with that URL already.", code="worker_exists", param="url")
        prefill = [new.url] if new.role is not Role.DECODE else []
        decode = [new.url] if new.role is not Role.PREFILL else []
        (worker,) = pool.add_static(prefill, decode)
        return view_worker(worker)

    @api.delete(_ONE)
    async def delete(worker_id: str) -> WorkerView:
        """Forget a worker that was added by URL. Nothing new is sent to it; what runs on it is finished."""
        worker = _known(services, worker_id)
        if not pool.is_static(worker):
            raise ConflictError(
                "The worker announces itself in the registry, so it would come back: drain it, or stop its process.",
                code="worker_announced",
            )
        pool.remove_static(worker)
        return view_worker(worker)

    return api


def _known(services: Services, worker_id: str) -> Worker:
    worker = services.pool.get(worker_id)
    if worker is None:
        raise NotFoundError("No worker has that id.", code="worker_not_found")
    return worker
