"""The shared parts of the router that a request needs, in one object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.router.request.ended import EndedRequests

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_serve.core.net.deadlines import Timeouts
    from baton_serve.core.net.late_writes import LateWrites
    from baton_serve.core.net.served.body import BodyBudget
    from baton_serve.router.engines.engines import Engines
    from baton_serve.router.metrics.metrics import Metrics
    from baton_serve.router.peers.cleanup import Cleanup
    from baton_serve.router.peers.port import PeerRouters
    from baton_serve.router.placement import PickDecode, PickPrefill, SkipPrefillRule
    from baton_serve.router.pool import Worker, WorkerPool
    from baton_serve.router.pool.liveness import Liveness
    from baton_serve.router.pool.lost import LostWorkers
    from baton_serve.router.pool.readiness import Readiness
    from baton_serve.router.queue.lease_limit import LeaseLimit
    from baton_serve.router.queue.priorities import PriorityClasses
    from baton_serve.router.queue.retry_budget import RetryBudget
    from baton_serve.router.queue.worker_queue import WorkerQueue
    from baton_serve.router.renewal.port import LeaseRenewer
    from baton_serve.router.request.active import ActiveRequests
    from baton_serve.router.request.attempts import Limits
    from baton_serve.router.request.releaser import Releaser
    from baton_serve.router.settings import RouterSettings
    from baton_serve.router.upstream.direct_releases import DirectReleases
    from baton_serve.router.upstream.internal_calls import InternalCalls
    from baton_serve.router.upstream.missing_engines import MissingEngines
    from baton_serve.router.upstream.port import Upstream
    from baton_serve.router.upstream.prefill_aborts import PrefillAborts
    from baton_serve.router.vllm.leases.vllm_leases import VllmLeases


class Services:
    """Everything shared by the requests of one router."""

    def __init__(
        self,
        *,
        settings: RouterSettings,
        clock: Callable[[], float],
        late_writes: LateWrites,
        upstream: Upstream,
        pool: WorkerPool,
        prefill_queue: WorkerQueue,
        held_queue: WorkerQueue,
        pick_prefill: PickPrefill,
        pick_decode: PickDecode,
        leases: LeaseRenewer,
        engines: Engines,
        vllm_leases: VllmLeases,
        internal_calls: InternalCalls,
        prefill_aborts: PrefillAborts,
        direct_releases: DirectReleases,
        missing_engines: MissingEngines,
        lost: LostWorkers,
        metrics: Metrics,
        active: ActiveRequests,
        lease_limit: LeaseLimit,
        releaser: Releaser,
        liveness: Liveness,
        skip_prefill: SkipPrefillRule,
        priorities: PriorityClasses,
        limits: Limits,
        retry_budget: RetryBudget,
        readiness: Readiness,
        body_budget: BodyBudget,
        timeouts: Timeouts,
        peers: PeerRouters,
        cleanup: Cleanup,
        worker_headers: tuple[tuple[str, str], ...],
    ) -> None:
        self.settings = settings
        #: The event loop's, seconds. To ask for the loop each time costs a call to the system.
        self.clock = clock
        #: Of the clients' port and of ``upstream``, so that a turn's writes are put off together.
        self.late_writes = late_writes
        self.upstream = upstream
        self.pool = pool
        self.prefill_queue = prefill_queue
        self.held_queue = held_queue
        self.pick_prefill = pick_prefill
        self.pick_decode = pick_decode
        self.leases = leases
        #: What differs between the engines behind the workers.
        self.engines = engines
        #: The leases on vLLM's prefill workers, and their side channels.
        self.vllm_leases = vllm_leases
        self.internal_calls = internal_calls
        self.prefill_aborts = prefill_aborts
        self.direct_releases = direct_releases
        self.missing_engines = missing_engines
        #: Workers that left without saying so.
        self.lost = lost
        self.lease_limit = lease_limit
        #: Releases what requests hold: places on workers, leases, answers that will not be read.
        self.releaser = releaser
        self.liveness = liveness
        self.skip_prefill = skip_prefill
        self.priorities = priorities
        #: Bounds per request: prefills, decodes, migrations, worker deaths. ``retry_budget`` bounds all requests
        #: together.
        self.limits = limits
        self.retry_budget = retry_budget
        self.readiness = readiness
        #: Bounds the bytes of all bodies that this process holds, on both ports.
        self.body_budget = body_budget
        #: Timeouts of which there are many, all of a few lengths.
        self.timeouts = timeouts
        #: The other routers.
        self.peers = peers
        #: Ends requests and leases that dead routers have left on workers.
        self.cleanup = cleanup
        #: The header with the internal token; empty if there is no token.
        self.worker_headers = worker_headers
        #: Looked at for each call to a worker, and a setting is slow to look at.
        self._trusts_static_workers = settings.trust_static_workers
        self.active = active
        self.ended = EndedRequests()
        self.metrics = metrics

    @property
    def router_id(self) -> str:
        """Id of this router; the ids of its requests end with it."""
        return self.peers.router_id

    def headers_for(self, worker: Worker) -> tuple[tuple[str, str], ...]:
        """The headers that prove to a worker that one of its own routers is calling.

        A worker that is not in the registry gets none: the engine at an address from the command line may not be
        Baton's, and must not learn the internal token. The engine of a vLLM server never is Baton's.
        """
        if not worker.kind.may_be_ours:
            return ()
        return self.worker_headers if worker.engine_id or self._trusts_static_workers else ()
