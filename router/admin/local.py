"""One router's own requests: listing and aborting them, as its part of what all routers answer together."""

from __future__ import annotations

import asyncio
from typing import Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from baton_serve.core.protocol.errors import CancelledByAdminError, NotFoundError
from baton_serve.router.admin.answers import (
    LocalAborted,
    LocalEnded,
    LocalIds,
    LocalKeepers,
    LocalRequests,
    LocalState,
)
from baton_serve.router.admin.bodies import StrictBody, Text
from baton_serve.router.parts import Requests, Workers
from baton_serve.router.renewal.port import LeaseRenewer
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.request.states import State
from baton_serve.router.request.view import view_request


class AbortFilter(StrictBody):
    """Which requests to abort: those that match every field given. ``{"all": true}`` for all of them."""

    state: State | None = Field(None, description="Where the request is.")
    worker: Text | None = Field(None, description="Id of the prefill or decode worker, or its beginning.")
    model: Text | None = None
    user: Text | None = None
    older_than_s: float | None = Field(None, ge=0, description="Age above which a request matches, seconds.")
    all: bool = False

    @model_validator(mode="after")
    def _check_all(self) -> Self:
        if self.all and any(value is not None for name, value in self if name != "all"):
            raise PydanticCustomError("not_all", '"all" does not combine with other fields: give one or the other')
        return self


class LocalRouter:
    """What this router answers for itself, to operators and, under ``/internal``, to other routers."""

    def __init__(self, workers: Workers, requests: Requests, renewer: LeaseRenewer, router_id: str) -> None:
        self._workers = workers
        self._active = requests.active
        self._queues = requests.queues
        self._ended = requests.ended
        self._renewer = renewer
        self.router_id = router_id

    async def requests(self) -> LocalRequests:
        """The live requests."""
        return LocalRequests([view_request(facts) for facts in self._facts()])

    async def ids(self, beginning: str) -> LocalIds:
        """The ids of the live requests that start with ``beginning``."""
        return LocalIds([each for each in self._active.ids() if each.startswith(beginning)])

    async def ended(self) -> LocalEnded:
        """The requests that ended last."""
        return LocalEnded(self._ended.newest(asyncio.get_running_loop().time()))

    async def keepers(self) -> LocalKeepers:
        """The leases that requests hold."""
        return LocalKeepers(self._active.lease_keepers())

    async def state(self) -> LocalState:
        """What is in progress."""
        pool = self._workers.pool
        return LocalState(
            requests=len(self._active),
            waiting=len(self._queues.prefill),
            held=len(self._queues.held),
            in_flight={worker.worker_id: worker.usage.in_flight for worker in pool if worker.usage.in_flight},
            held_blocks={worker.worker_id: worker.usage.held_blocks for worker in pool if worker.usage.held_blocks},
            renewed=len(self._renewer),
            leased=len(self._workers.lease_limit),
            tasks=len(asyncio.all_tasks()),
        )

    async def abort(self, request_id: str) -> LocalAborted:
        """End one request now, in any state. Raises NotFoundError if the id is not live."""
        if not self._stop(request_id):
            raise NotFoundError("No live request has that id.", code="request_not_found")
        return LocalAborted([request_id])

    async def abort_matching(self, wanted: AbortFilter) -> LocalAborted:
        """End every request that matches."""
        matching = [facts.id for facts in self._facts() if _matches(facts, wanted)]
        return LocalAborted([each for each in matching if self._stop(each)])

    def _stop(self, request_id: str) -> bool:
        return self._active.stop(request_id, CancelledByAdminError("The request was aborted by an administrator."))

    def _facts(self) -> list[RequestFacts]:
        return self._active.facts(asyncio.get_running_loop().time())


def _matches(facts: RequestFacts, wanted: AbortFilter) -> bool:
    return (
        (wanted.state is None or wanted.state is facts.state)
        and (wanted.worker is None or wanted.worker in {facts.prefill_worker, facts.decode_worker})
        and (wanted.model is None or wanted.model == facts.model)
        and (wanted.user is None or wanted.user == facts.user)
        and (wanted.older_than_s is None or facts.age_s > wanted.older_than_s)
    )
