"""``/admin/workers``: list, drain and resume workers, add and delete workers by URL."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field

from baton_serve.core.net.client.errors import CallError
from baton_serve.core.protocol.errors import BadRequestError, ConflictError, UpstreamError
from baton_serve.core.protocol.worker_address import WorkerAddress
from baton_serve.router.admin.answers import FromAllRouters
from baton_serve.router.admin.ids import one_lost, one_worker
from baton_serve.router.admin.shared_workers import Forgotten, LeftOut, NewWorker, add_worker, is_known, tell_others
from baton_serve.router.parts import Workers
from baton_serve.router.peers.port import PeerRouters
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.pool.lost import LostWorker
from baton_serve.router.pool.view import WorkerView, view_worker
from baton_serve.router.upstream.internal_calls import InternalCalls
from baton_serve.router.upstream.worker_errors import from_worker

#: Most seconds to wait for a worker that is told to drain or to resume.
CALL_TIMEOUT_S = 5.0
#: Most seconds that a resumed worker is waited for to announce it.
ANNOUNCED_S = 1.0
#: Ids of static workers are their URLs, so they may contain slashes.
_ONE = "/workers/{worker_id:path}"


@dataclass
class WorkerList:
    """Known workers."""

    workers: list[WorkerView]
    lost: Annotated[
        list[LostWorker],
        Field(
            description="Those that left without draining, as they were; for an hour, or until they are back or "
            "deleted."
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class ChangedWorker(WorkerView):
    """A worker that was added or deleted."""

    unreachable_routers: Annotated[list[str], Field(description="Ids of the routers that could not be notified.")]


@dataclass(kw_only=True)
class ForgottenWorker(FromAllRouters):
    """A lost worker that is no longer listed, and the routers that could not be notified."""

    id: str


@dataclass(kw_only=True)
class DrainAnswer(FromAllRouters):
    """The state of a worker after ``drain`` or ``resume``."""

    id: str
    draining: bool
    told: Annotated[
        bool,
        Field(
            description="The worker knows. False: it has no internal port that is known; all routers were told instead."
        ),
    ]


def worker_routes(workers: Workers, peers: PeerRouters, *, only_tls: bool) -> APIRouter:
    """The routes to list, drain, resume, add and delete workers. ``only_tls``: a worker has to speak TLS."""
    api = APIRouter()
    pool, lost_workers = workers.pool, workers.lost

    @api.get("/workers")
    async def listed() -> WorkerList:
        """Workers, their load and their health."""
        return WorkerList(workers=[view_worker(worker) for worker in pool], lost=lost_workers.all())

    @api.post(f"{_ONE}/drain")
    async def drain(worker_id: str) -> DrainAnswer:
        """Send the worker nothing new; its requests finish. Takes effect here at once, even if the answer is 502."""
        worker = one_worker(pool, worker_id)
        pool.leave_out(worker)
        told = await _tell(workers.calls, worker, "drain")
        if told:
            pool.drain_told(worker)
        return DrainAnswer(
            id=worker.worker_id, draining=True, told=told, unreachable_routers=await others(worker, told)
        )

    @api.post(f"{_ONE}/resume")
    async def resume(worker_id: str) -> DrainAnswer:
        """Send the worker work again. A worker that cannot be asked (502) or is stopping (409) stays as it is."""
        worker = one_worker(pool, worker_id)
        told = await _tell(workers.calls, worker, "resume")
        pool.take_back(worker)
        if told:  # a request that is sent after this answer finds the worker
            with contextlib.suppress(TimeoutError):  # the registry is away
                await pool.until(
                    lambda: None if worker.usage.load.draining and pool.knows(worker) else True, ANNOUNCED_S
                )
        return DrainAnswer(
            id=worker.worker_id, draining=False, told=told, unreachable_routers=await others(worker, told)
        )

    @api.post("/workers", status_code=201)
    async def add(new: NewWorker) -> ChangedWorker:
        """Add a worker by URL to all routers. They ask for its models; until it answers, it is tried for any model."""
        if only_tls and not new.address.speaks_tls:
            raise BadRequestError(
                "TLS is set up between routers and workers: the URL has to begin with https:// or vllm+https://.",
                code="invalid_value",
                param="url",
            )
        if is_known(pool, new.address):
            raise ConflictError(
                "There is a worker with that URL already; DELETE it first to change its role or its options.",
                code="worker_exists",
                param="url",
            )
        return _changed(add_worker(pool, new), await tell_others(peers, "add", new))

    @api.delete(_ONE)
    async def delete(worker_id: str) -> ChangedWorker | ForgottenWorker:
        """Forget a worker that was added by URL, or all that a host name stands for. All routers send it nothing new;
        its running requests finish. A lost worker is no longer listed.
        """
        lost = None if pool.given_as(worker_id) else one_lost(workers, worker_id)
        if lost is not None:
            lost_workers.forget(lost)
            return ForgottenWorker(id=lost, unreachable_routers=await tell_others(peers, "forget", Forgotten(id=lost)))
        worker, given = _to_delete(pool, worker_id)
        pool.forget_address(given.worker_id)
        return _changed(worker, await tell_others(peers, "forget", Forgotten(id=given.worker_id)))

    async def others(worker: Worker, told: bool) -> list[str]:
        """Notify the other routers, unless the worker itself announces it. Returns the ids of routers not reached."""
        wanted = LeftOut(id=worker.worker_id, left_out=worker.standing.left_out)
        return [] if told else await tell_others(peers, "leave-out", wanted)

    return api


async def _tell(calls: InternalCalls, worker: Worker, what: Literal["drain", "resume"]) -> bool:
    """Returns True if the worker has confirmed; False if it has no internal port that this router knows.

    Raises UpstreamError if the worker cannot be reached or refuses, and WorkerError if it answers 409 because it stops.
    """
    if not worker.internal_url:
        return False
    try:
        status, body = await calls.post(worker, f"/internal/{what}", CALL_TIMEOUT_S)
    except CallError as error:
        raise UpstreamError(f"The worker was not told to {what}: {error}.", code="worker_unreachable") from None
    if status == 200:
        return True
    refusal = from_worker(status, body)
    if status == 409:
        raise refusal
    raise UpstreamError(f"The worker was not told to {what}: {refusal.message}")


def _changed(worker: Worker, unreachable_routers: list[str]) -> ChangedWorker:
    view = view_worker(worker)
    shown = {field.name: getattr(view, field.name) for field in fields(view)}
    return ChangedWorker(**shown, unreachable_routers=unreachable_routers)


def _to_delete(pool: WorkerPool, worker_id: str) -> tuple[Worker, WorkerAddress]:
    """The worker, or one of the workers of a host name, that the id stands for, and its address. Raises ApiError."""
    worker = next(iter(pool.given_as(worker_id)), None) or one_worker(pool, worker_id)
    if worker.given is None:
        raise ConflictError(
            "The worker announces itself in the registry, so it would come back: drain it, or stop its process.",
            code="worker_announced",
        )
    if worker_id != worker.given.worker_id != worker.worker_id:
        raise ConflictError(
            f"The worker is one of {worker.given.worker_id}, so it would come back: delete that, or drain this one.",
            code="worker_of_a_name",
        )
    return worker, worker.given
