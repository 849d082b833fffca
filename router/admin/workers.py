"""``/admin/workers``: list, drain and resume workers, add and delete workers by URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic import BaseModel, Field

from core.protocol.errors import BadRequestError, ConflictError
from router.admin.fan_out import FromAllRouters
from router.admin.ids import one_worker
from router.admin.shared_workers import Forgotten, LeftOut, NewWorker, add_worker, has_url, tell_others
from router.admin.worker_calls import tell_worker
from router.admin.worker_view import WorkerView, view_worker

if TYPE_CHECKING:
    from router.pool import Worker
    from router.services import Services

#: Ids of static workers are their URLs, so they may contain slashes.
_ONE = "/workers/{worker_id:path}"


class WorkerList(BaseModel):
    """Known workers."""

    workers: list[WorkerView]


class ChangedWorker(WorkerView, FromAllRouters):
    """A worker that was added or deleted, and the routers that could not be notified."""


class DrainAnswer(FromAllRouters):
    """The state of a worker after ``drain`` or ``resume``."""

    id: str
    draining: bool
    told: bool = Field(
        description="The worker knows. False: it has no internal port that is known; all routers were told instead."
    )


def worker_routes(services: Services) -> APIRouter:
    """The routes to list, drain, resume, add and delete workers."""
    api = APIRouter()
    pool = services.pool

    @api.get("/workers")
    async def workers() -> WorkerList:
        """Workers, their load and their health."""
        return WorkerList(workers=[view_worker(worker) for worker in pool])

    @api.post(f"{_ONE}/drain")
    async def drain(worker_id: str) -> DrainAnswer:
        """Send the worker nothing new; its requests finish. Takes effect here at once, even if the answer is 502."""
        worker = one_worker(pool, worker_id)
        pool.leave_out(worker)
        told = await tell_worker(services, worker, "drain")
        if told:
            pool.drain_told(worker)
        return DrainAnswer(
            id=worker.worker_id, draining=True, told=told, unreachable_routers=await others(worker, told)
        )

    @api.post(f"{_ONE}/resume")
    async def resume(worker_id: str) -> DrainAnswer:
        """Send the worker work again. One that cannot be asked (502) or is stopping (409) stays as it is."""
        worker = one_worker(pool, worker_id)
        told = await tell_worker(services, worker, "resume")
        pool.take_back(worker)
        return DrainAnswer(
            id=worker.worker_id, draining=False, told=told, unreachable_routers=await others(worker, told)
        )

    @api.post("/workers", status_code=201)
    async def add(new: NewWorker) -> ChangedWorker:
        """Add a worker by URL to all routers. They ask for its models; until it answers, it is tried for any model."""
        if services.settings.speaks_internal_tls and not new.url.startswith("https://"):
            raise BadRequestError(
                "TLS is set up between routers and workers: the URL has to begin with https://.",
                code="invalid_value",
                param="url",
            )
        if has_url(pool, new.url):
            raise ConflictError("There is a worker with that URL already.", code="worker_exists", param="url")
        view = view_worker(add_worker(pool, new))
        return ChangedWorker(**view.model_dump(), unreachable_routers=await tell_others(services, "add", new))

    @api.delete(_ONE)
    async def delete(worker_id: str) -> ChangedWorker:
        """Forget a worker that was added by URL. All routers send it nothing new; its running requests finish."""
        worker = one_worker(pool, worker_id)
        if not pool.is_static(worker):
            raise ConflictError(
                "The worker announces itself in the registry, so it would come back: drain it, or stop its process.",
                code="worker_announced",
            )
        pool.remove_static(worker)
        unreachable = await tell_others(services, "forget", Forgotten(id=worker.worker_id))
        return ChangedWorker(**view_worker(worker).model_dump(), unreachable_routers=unreachable)

    async def others(worker: Worker, told: bool) -> list[str]:
        """Notify the other routers, unless the worker itself announces it. Returns the ids of those not reached."""
        wanted = LeftOut(id=worker.worker_id, left_out=worker.left_out)
        return [] if told else await tell_others(services, "leave-out", wanted)

    return api
