"""What routers answer: each for itself (``Local...``), and one for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from baton_serve.router.request.ended import EndedRequest
from baton_serve.router.request.view import RequestView


@dataclass(kw_only=True)
class FromAllRouters:
    """An answer made of parts from every router."""

    unreachable_routers: Annotated[
        list[str], Field(description="Ids of the routers that did not answer: their share is missing.")
    ] = field(default_factory=list)


@dataclass
class LocalRequests:
    """Live requests of one router, oldest first."""

    requests: list[RequestView]


@dataclass
class LocalEnded:
    """Ended requests of one router, newest first."""

    ended: list[EndedRequest]


@dataclass
class LocalAborted:
    """Ids of one router's requests that were aborted."""

    aborted: list[str]


@dataclass
class LocalIds:
    """Ids of one router's live requests that have the asked beginning."""

    ids: list[str]


@dataclass
class LocalKeepers:
    """Which requests of one router hold which leases: request ids by lease id."""

    keepers: dict[str, str]


@dataclass
class LocalState:
    """What a router has in progress. Everything but ``tasks`` is 0 or empty when it has no requests."""

    requests: int
    waiting: Annotated[int, Field(description="Requests in the queue for a prefill worker.")]
    held: Annotated[int, Field(description="Requests in the queue for a decode worker.")]
    in_flight: Annotated[
        dict[str, int], Field(description="Requests sent to workers and not over, by worker, without zeros.")
    ]
    held_blocks: Annotated[dict[str, int], Field(description="Blocks reserved on workers, by worker, without zeros.")]
    renewed: Annotated[int, Field(description="Leases that it renews.")]
    leased: Annotated[int, Field(description="Leases whose blocks it counts as taken.")]
    tasks: Annotated[int, Field(description="asyncio tasks of the process.")]
