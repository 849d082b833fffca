"""What routers tell each other about workers, because no registry does: workers added by URL, and those left out.

A worker with an internal port is told itself to drain, and announces that it does; of others only the routers know.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter
from pydantic import BaseModel, Field, ValidationError, field_validator

from core.protocol.addresses import MAX_URL_CHARS, worker_url
from core.protocol.worker import Role
from router.admin.bodies import StrictBody, Text
from router.admin.fan_out import ask_all

if TYPE_CHECKING:
    from router.peers.links import LinkedPeers
    from router.pool import Worker, WorkerPool
    from router.services import Services

log = logging.getLogger("baton.router")

#: An id of a worker, bounded since it is kept; for a worker that was added by URL it is the URL.
Name = Annotated[Text, Field(max_length=MAX_URL_CHARS)]


class NewWorker(StrictBody):
    """A worker that is not in the registry, until the last router ends or it is deleted.

    It is sent the internal token only with ``trust_static_workers``, since a foreign engine may be behind the address.
    """

    url: Text = Field(description="host:port or base URL.")
    role: Role

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        base_url = worker_url(url)
        # A single word could be a machine with a worker on port 80, but is more often a mistake.
        if "://" not in url and urlsplit(base_url).port is None:
            raise ValueError("worker addresses are host:port or http(s)://host:port")
        return base_url


class Forgotten(BaseModel):
    """A worker that was added by URL and is deleted."""

    id: Name


class LeftOut(BaseModel):
    """Whether a worker that cannot be told itself is sent anything new."""

    id: Name
    left_out: bool


class Shared(BaseModel):
    """All that a router learns from another one when it starts."""

    added: list[NewWorker]
    left_out: list[Name]


class Noted(BaseModel):
    """A router has noted what it was told. Told again, nothing changes."""

    noted: bool = True


def add_worker(pool: WorkerPool, new: NewWorker) -> Worker:
    """Add a worker by URL."""
    prefill = [new.url] if new.role is not Role.DECODE else []
    decode = [new.url] if new.role is not Role.PREFILL else []
    (worker,) = pool.add_static(prefill, decode)
    return worker


def has_url(pool: WorkerPool, url: str) -> bool:
    """There is a worker with that URL."""
    return any(worker.url == url for worker in pool)


async def tell_others(services: Services, path: str, told: BaseModel) -> list[str]:
    """Tell all other routers. Returns the ids of those that were not reached."""
    heard = await ask_all(services.peers, Noted, "POST", f"/internal/workers/{path}", told.model_dump_json().encode())
    return heard.unreachable


async def learn_from_others(services: Services, peers: LinkedPeers) -> None:
    """Take over what the first other router that answers knows; once, after the registry's first list of routers."""
    await peers.met.wait()
    for record in peers:
        answer = await peers.ask(record.router_id, "GET", "/internal/workers/shared")
        if answer is None or not answer.ok:
            continue
        try:
            _take_over(services.pool, Shared.model_validate_json(answer.body))
        except ValidationError as error:
            log.warning("router %s told its workers in words we do not know: %s", record.router_id, error)
            continue
        return


def shared_worker_routes(services: Services) -> APIRouter:
    """``/workers/...`` under ``/internal``."""
    api = APIRouter(prefix="/workers")
    pool = services.pool

    @api.get("/shared")
    async def shared() -> Shared:
        """For a router that starts."""
        added = [NewWorker(url=worker.url, role=worker.role) for worker in pool if pool.is_static(worker)]
        left_out = [worker.worker_id for worker in pool if worker.left_out and not worker.internal_url]
        return Shared(added=added, left_out=left_out)

    @api.post("/add")
    async def add(new: NewWorker) -> Noted:
        """Another router was told to add a worker by URL."""
        _take_over(pool, Shared(added=[new], left_out=[]))
        return Noted()

    @api.post("/forget")
    async def forget(gone: Forgotten) -> Noted:
        """Another router was told to delete the worker."""
        worker = pool.get(gone.id)
        if worker is not None and pool.is_static(worker):
            pool.remove_static(worker)
        return Noted()

    @api.post("/leave-out")
    async def leave_out(wanted: LeftOut) -> Noted:
        """Another router was told to drain or to resume the worker."""
        pool.told_left_out(wanted.id, wanted.left_out)
        return Noted()

    return api


def _take_over(pool: WorkerPool, shared: Shared) -> None:
    for new in shared.added:
        if not has_url(pool, new.url):
            add_worker(pool, new)
    for worker_id in shared.left_out:
        pool.told_left_out(worker_id, True)
