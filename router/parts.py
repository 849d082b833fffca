"""The parts of a router, by what they are about. ``build`` makes them; each is passed to what works with it.

The parts that move requests are in ``router.steps.intake``.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.router.pool import WorkerPool
from baton_serve.router.pool.lost import LostWorkers
from baton_serve.router.pool.readiness import Readiness
from baton_serve.router.queue.lease_limit import LeaseLimit
from baton_serve.router.queue.queues import Queues
from baton_serve.router.renewal.port import LeaseRenewer
from baton_serve.router.request.active import ActiveRequests
from baton_serve.router.request.ended import EndedRequests
from baton_serve.router.telemetry.metrics.metrics import Metrics
from baton_serve.router.upstream.direct_releases import DirectReleases
from baton_serve.router.upstream.internal_calls import InternalCalls
from baton_serve.router.upstream.missing_engines import MissingEngines
from baton_serve.router.upstream.prefill_aborts import PrefillAborts


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers, as this router knows them, and the connections to them."""

    pool: WorkerPool
    #: Workers that left without saying so.
    lost: LostWorkers
    readiness: Readiness
    lease_limit: LeaseLimit
    upstream: HttpClient
    #: Calls to the internal ports of workers.
    calls: InternalCalls


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of this router: all live ones, the ones that wait among them, and the ones that ended last."""

    active: ActiveRequests
    queues: Queues
    ended: EndedRequests
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Leases:
    """The leases on P's blocks, and the calls to workers by which they end; leases on vLLM's servers are apart."""

    renewer: LeaseRenewer
    prefill_aborts: PrefillAborts
    direct_releases: DirectReleases
    missing_engines: MissingEngines
