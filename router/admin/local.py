"""One router's own requests: listing and aborting them, as its part of what all routers answer together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from baton_serve.core.protocol.errors import CancelledByAdminError
from baton_serve.router.admin.bodies import StrictBody, Text
from baton_serve.router.admin.request_view import RequestView, view_request
from baton_serve.router.request.states import State

if TYPE_CHECKING:
    from baton_serve.router.request.facts import RequestFacts
    from baton_serve.router.services import Services


class LocalRequests(BaseModel):
    """Live requests of one router, oldest first."""

    requests: list[RequestView]


class LocalAborted(BaseModel):
    """Ids of one router's requests that were aborted."""

    aborted: list[str]


class LocalKeepers(BaseModel):
    """Which requests of one router hold which leases: request ids by lease id."""

    keepers: dict[str, str]


class LocalState(BaseModel):
    """What a router has in progress. Everything but ``tasks`` is 0 or empty when it has no requests."""

    requests: int
    waiting: int = Field(description="Requests in the queue for a prefill worker.")
    held: int = Field(description="Requests in the queue for a decode worker.")
    in_flight: dict[str, int] = Field(description="Requests sent to workers and not over, by worker, without zeros.")
    held_blocks: dict[str, int] = Field(description="Blocks reserved on workers, by worker, without zeros.")
    renewed: int = Field(description="Leases that it renews.")
    leased: int = Field(description="Leases whose blocks it counts as taken.")
    tasks: int = Field(description="asyncio tasks of the process.")


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


def local_requests(services: Services) -> LocalRequests:
    """The live requests of this router."""
    return LocalRequests(requests=[_view(services, facts) for facts in _all_facts(services)])


def local_keepers(services: Services) -> LocalKeepers:
    """The leases that requests of this router hold."""
    return LocalKeepers(keepers=services.active.lease_keepers())


def local_state(services: Services) -> LocalState:
    """What this router has in progress."""
    return LocalState(
        requests=len(services.active),
        waiting=len(services.prefill_queue),
        held=len(services.held_queue),
        in_flight={worker.worker_id: worker.in_flight for worker in services.pool if worker.in_flight},
        held_blocks={worker.worker_id: worker.held_blocks for worker in services.pool if worker.held_blocks},
        renewed=len(services.leases),
        leased=len(services.lease_limit),
        tasks=len(asyncio.all_tasks()),
    )


def abort_local(services: Services, request_id: str) -> bool:
    """End one request of this router now, in any state. Returns False if the id is not live."""
    return services.active.stop(request_id, _cancelled())


def abort_local_matching(services: Services, wanted: AbortFilter) -> LocalAborted:
    """End every request of this router that matches."""
    matching = [facts.id for facts in _all_facts(services) if _matches(facts, wanted)]
    return LocalAborted(aborted=[each for each in matching if services.active.stop(each, _cancelled())])


def _view(services: Services, facts: RequestFacts) -> RequestView:
    return view_request(
        facts, services.leases.remaining_ms(facts.engine_id, facts.lease_id) if facts.lease_id else None
    )


def _cancelled() -> CancelledByAdminError:
    return CancelledByAdminError("The request was aborted by an administrator.")


def _matches(facts: RequestFacts, wanted: AbortFilter) -> bool:
    return (
        (wanted.state is None or wanted.state is facts.state)
        and (wanted.worker is None or wanted.worker in {facts.prefill_worker, facts.decode_worker})
        and (wanted.model is None or wanted.model == facts.model)
        and (wanted.user is None or wanted.user == facts.user)
        and (wanted.older_than_s is None or facts.age_s > wanted.older_than_s)
    )


def _all_facts(services: Services) -> list[RequestFacts]:
    return services.active.facts(asyncio.get_running_loop().time())
