"""Facts about workers that routers exchange, since the registry lacks them: workers added by URL, and excluded ones.

A worker with an internal port is itself asked to drain and then announces it; about others only the routers know.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter
from pydantic import BaseModel, Field, ValidationError, field_validator

from baton_serve.core.protocol.addresses import MAX_URL_CHARS
from baton_serve.core.protocol.worker import Role
from baton_serve.core.protocol.worker_address import WorkerAddress, worker_address
from baton_serve.router.admin.bodies import StrictBody, Text
from baton_serve.router.parts import Workers
from baton_serve.router.peers.asking import ask_all
from baton_serve.router.peers.links import LinkedPeers
from baton_serve.router.peers.port import PeerRouters
from baton_serve.router.pool import Worker, WorkerPool

log = logging.getLogger("baton.router")

#: A worker's id, bounded since it is kept; the id of a worker that was added by URL is the URL.
Name = Annotated[Text, Field(max_length=MAX_URL_CHARS)]


class NewWorker(StrictBody):
    """A worker that is not in the registry, until the last router ends or it is deleted.

    It is sent the internal token only with ``trust_static_workers``, since the engine there may not be Baton's.
    """

    url: Text = Field(
        description="host:port or base URL; of a vLLM server vllm+http(s)://host:port, as in the settings."
    )
    role: Role = Field(description="What the worker is for.")

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        address = worker_address(url)
        # A single word could be a host with a worker on port 80, but is more often a mistake.
        if "://" not in url and urlsplit(address.url).port is None:
            raise ValueError("worker addresses are host:port, http(s)://host:port or vllm+http(s)://host:port")
        return address.text

    @property
    def address(self) -> WorkerAddress:
        """``url``, parsed."""
        return worker_address(self.url)


class Forgotten(BaseModel):
    """A worker that was added by URL and is to be deleted."""

    id: Name


class LeftOut(BaseModel):
    """Whether a worker without an internal port is excluded from new requests."""

    id: Name
    left_out: bool


class Shared(BaseModel):
    """What a starting router learns from another one."""

    added: list[NewWorker]
    left_out: list[Name]


@dataclass
class Noted:
    """A router's confirmation. Sending it the same again changes nothing."""

    noted: bool = True


def add_worker(pool: WorkerPool, new: NewWorker) -> Worker:
    """Add a worker by URL."""
    (worker,) = pool.add_addresses({new.address: new.role})
    return worker


def is_known(pool: WorkerPool, address: WorkerAddress) -> bool:
    """Whether there is a worker at that address, or one that was added under its host name."""
    return any(worker.url == address.url for worker in pool) or bool(pool.given_as(address.worker_id))


async def tell_others(peers: PeerRouters, path: str, told: BaseModel) -> list[str]:
    """Notify all other routers. Returns the ids of the routers that were not reached."""
    heard = await ask_all(peers, Noted, "POST", f"/internal/workers/{path}", told.model_dump_json().encode())
    return heard.unreachable


async def learn_from_others(pool: WorkerPool, peers: LinkedPeers) -> None:
    """Take over what the first other router to answer knows; once, after the registry's first list of routers."""
    await peers.met.wait()
    for record in peers:
        answer = await peers.ask(record.router_id, "GET", "/internal/workers/shared")
        if answer is None or not answer.ok:
            continue
        try:
            _take_over(pool, Shared.model_validate_json(answer.body))
        except ValidationError as error:
            log.warning("router %s told its workers in words we do not know: %s", record.router_id, error)
            continue
        return


def shared_worker_routes(workers: Workers) -> APIRouter:
    """``/workers/...`` under ``/internal``."""
    api = APIRouter(prefix="/workers")
    pool = workers.pool

    @api.get("/shared")
    async def shared() -> Shared:
        """For a starting router: the workers added by URL, and the excluded ones."""
        given = {worker.given.text: worker.role for worker in pool if worker.given is not None}
        added = [NewWorker(url=url, role=role) for url, role in given.items()]
        left_out = [worker.worker_id for worker in pool if worker.standing.left_out and not worker.internal_url]
        return Shared(added=added, left_out=left_out)

    @api.post("/add")
    async def add(new: NewWorker) -> Noted:
        """Add a worker by URL, as another router was asked to."""
        _take_over(pool, Shared(added=[new], left_out=[]))
        return Noted()

    @api.post("/forget")
    async def forget(gone: Forgotten) -> Noted:
        """Delete the worker, as another router was asked to."""
        pool.forget_address(gone.id)
        workers.lost.forget(gone.id)
        return Noted()

    @api.post("/leave-out")
    async def leave_out(wanted: LeftOut) -> Noted:
        """Exclude the worker or include it again, as another router was asked to."""
        pool.told_left_out(wanted.id, wanted.left_out)
        return Noted()

    return api


def _take_over(pool: WorkerPool, shared: Shared) -> None:
    for new in shared.added:
        if not is_known(pool, new.address):
            add_worker(pool, new)
    for worker_id in shared.left_out:
        pool.told_left_out(worker_id, True)
