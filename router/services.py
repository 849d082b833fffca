"""The shared parts of the router that a request needs, in one object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.metrics.metrics import Metrics
from router.pool import EngineKind
from router.request.active import ActiveRequests
from router.request.ended import EndedRequests

if TYPE_CHECKING:
    from core.net.deadlines import Timeouts
    from core.net.served.body import BodyBudget
    from router.engines.engines import Engines
    from router.peers.cleanup import Cleanup
    from router.peers.port import PeerRouters
    from router.placement import PickDecode, PickPrefill, SkipPrefillRule
    from router.pool import Worker, WorkerPool
    from router.pool.liveness import Liveness
    from router.pool.readiness import Readiness
    from router.queue.lease_limit import LeaseLimit
    from router.queue.priorities import PriorityClasses
    from router.queue.retry_budget import RetryBudget
    from router.queue.worker_queue import WorkerQueue
    from router.renewal.port import LeaseRenewer
    from router.request.attempts import Limits
    from router.request.releaser import Releaser
    from router.settings import RouterSettings
    from router.upstream.internal_calls import InternalCalls
    from router.upstream.port import Upstream
    from router.upstream.prefill_aborts import PrefillAborts
    from router.vllm_leases.vllm_leases import VllmLeases


@dataclass(slots=True)
class Services:
    """Everything shared by the requests of one router."""

    settings: RouterSettings
    upstream: Upstream
    pool: WorkerPool
    prefill_queue: WorkerQueue
    held_queue: WorkerQueue
    pick_prefill: PickPrefill
    pick_decode: PickDecode
    leases: LeaseRenewer
    #: What differs between the engines behind the workers.
    engines: Engines
    #: The leases on vLLM's prefill workers, and their side channels.
    vllm_leases: VllmLeases
    internal_calls: InternalCalls
    prefill_aborts: PrefillAborts
    lease_limit: LeaseLimit
    #: Releases what requests hold: places on workers, leases, answers that will not be read.
    releaser: Releaser
    liveness: Liveness
    skip_prefill: SkipPrefillRule
    priorities: PriorityClasses
    #: Bounds per request: prefills, decodes, migrations, worker deaths. ``retry_budget`` bounds all requests together.
    limits: Limits
    retry_budget: RetryBudget
    readiness: Readiness
    #: Bounds the bytes of all bodies that this process holds, on both ports.
    body_budget: BodyBudget
    #: Timeouts of which there are many, all of a few lengths.
    timeouts: Timeouts
    #: The other routers.
    peers: PeerRouters
    #: Ends requests and leases that dead routers have left on workers.
    cleanup: Cleanup
    #: The header with the internal token; empty if there is no token.
    worker_headers: tuple[tuple[str, str], ...] = ()
    active: ActiveRequests = field(default_factory=ActiveRequests)
    ended: EndedRequests = field(default_factory=EndedRequests)
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def router_id(self) -> str:
        """Id of this router; the ids of its requests end with it."""
        return self.peers.router_id

    def headers_for(self, worker: Worker) -> tuple[tuple[str, str], ...]:
        """The headers that prove to a worker that one of its own routers is calling.

        A worker that is not in the registry gets none: the engine at an address from the command line may not be
        Baton's, and must not learn the internal token. A vLLM server never is.
        """
        if worker.kind is EngineKind.VLLM:
            return ()
        return self.worker_headers if worker.engine_id or self.settings.trust_static_workers else ()
