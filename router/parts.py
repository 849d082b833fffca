"""The parts of a router, by what they are about. ``build`` makes them; each is passed to what works with it.

What moves requests has its own: ``router.steps``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from baton_serve.core.net.client.http_client import HttpClient
    from baton_serve.core.net.late_writes import LateWrites
    from baton_serve.core.net.served.body import BodyBudget
    from baton_serve.router.metrics.metrics import Metrics
    from baton_serve.router.peers.cleanup import Cleanup
    from baton_serve.router.peers.port import PeerRouters
    from baton_serve.router.pool import WorkerPool
    from baton_serve.router.pool.lost import LostWorkers
    from baton_serve.router.pool.readiness import Readiness
    from baton_serve.router.queue.lease_limit import LeaseLimit
    from baton_serve.router.queue.priorities import PriorityClasses
    from baton_serve.router.queue.queues import Queues
    from baton_serve.router.renewal.port import LeaseRenewer
    from baton_serve.router.request.active import ActiveRequests
    from baton_serve.router.request.ended import EndedRequests
    from baton_serve.router.steps.admission import Admission
    from baton_serve.router.steps.choices import ChoicesRunner
    from baton_serve.router.steps.exit import Exit
    from baton_serve.router.steps.records import Records
    from baton_serve.router.steps.run import Runner
    from baton_serve.router.upstream.direct_releases import DirectReleases
    from baton_serve.router.upstream.internal_calls import InternalCalls
    from baton_serve.router.upstream.missing_engines import MissingEngines
    from baton_serve.router.upstream.prefill_aborts import PrefillAborts
    from baton_serve.router.vllm.leases.vllm_leases import VllmLeases


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
    """The requests of this router: those that are live, those that wait among them, and those that ended last."""

    active: ActiveRequests
    queues: Queues
    ended: EndedRequests
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Leases:
    """The leases on P's blocks, and the calls to workers by which they end."""

    renewer: LeaseRenewer
    #: Those on vLLM's prefill workers, and their side channels.
    vllm: VllmLeases
    prefill_aborts: PrefillAborts
    direct_releases: DirectReleases
    missing_engines: MissingEngines


class Routers(NamedTuple):
    """This router, and the others. ``cleanup`` ends requests and leases that dead routers have left on workers."""

    peers: PeerRouters
    cleanup: Cleanup


@dataclass(frozen=True, slots=True)
class Intake:
    """Where requests come in, and what then happens to each."""

    #: Of the clients' port and of the connections to workers, so that a turn's writes are put off together.
    late_writes: LateWrites
    #: Bounds the bytes of all bodies that this process holds, on both ports.
    body_budget: BodyBudget
    priorities: PriorityClasses
    admission: Admission
    records: Records
    runner: Runner
    choices: ChoicesRunner
    exit: Exit
