"""What a request needs from the rest of the router, passed in once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from router.metrics.metrics import Metrics
from router.request.active import ActiveRequests
from router.request.ended import EndedRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.leases.store import LeaseState
    from core.net.body import BodyBudget
    from router.peers.cleanup import Cleanup
    from router.peers.port import Peers
    from router.placement import DirectRule, PickDecode, PickPrefill
    from router.pool import Worker, WorkerPool
    from router.pool.liveness import SignsOfLife
    from router.pool.readiness import Readiness
    from router.queue.lease_limit import LeasedBlocks
    from router.queue.priorities import PriorityClasses
    from router.queue.retry_budget import RetryBudget
    from router.queue.worker_queue import RoomQueue
    from router.request.attempts import Limits
    from router.settings import RouterSettings
    from router.upstream.internal_calls import InternalCalls
    from router.upstream.port import Upstream
    from router.upstream.prefill_aborts import PrefillAborts


class Leases(Protocol):
    """The leases this router keeps alive (``lease_client.py``). None of these block."""

    def track(self, engine_id: str, lease_id: str, on_over: Callable[[LeaseState], None]) -> None:
        """Renew from now on. ``on_over`` is called on the loop when P keeps them no longer: DONE (read), or lost."""

    def tracks(self, engine_id: str, lease_id: str) -> bool:
        """It is renewed for a request already."""

    def untrack(self, engine_id: str, lease_id: str) -> None:
        """Renew no longer: D has read, or nobody wants the blocks."""

    def release(self, engine_id: str, lease_id: str) -> None:
        """Renew no longer and tell P to free the blocks now."""

    def remaining_ms(self, engine_id: str, lease_id: str) -> int | None:
        """Until the deadline, as of the last renewal; None: not tracked, or nothing known yet."""

    def __len__(self) -> int:
        """Those it renews."""

    def counters(self) -> Mapping[str, int]:
        """What happened to leases so far, by name."""


@dataclass(slots=True)
class Services:
    """Everything shared by the requests of one router."""

    settings: RouterSettings
    upstream: Upstream
    pool: WorkerPool
    prefill_queue: RoomQueue
    held_queue: RoomQueue
    pick_prefill: PickPrefill
    pick_decode: PickDecode
    leases: Leases
    internal_calls: InternalCalls
    prefill_aborts: PrefillAborts
    leased: LeasedBlocks
    signs_of_life: SignsOfLife
    direct: DirectRule
    priorities: PriorityClasses
    #: How often one request may be tried again, and all together.
    limits: Limits
    retry_budget: RetryBudget
    readiness: Readiness
    #: Of all bodies that this process holds, on both ports.
    body_budget: BodyBudget
    #: The other routers.
    peers: Peers
    #: What routers that died have left on workers.
    cleanup: Cleanup
    #: The internal token, where there is one.
    worker_headers: tuple[tuple[str, str], ...] = ()
    active: ActiveRequests = field(default_factory=ActiveRequests)
    ended: EndedRequests = field(default_factory=EndedRequests)
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def router_id(self) -> str:
        """Who this router is; the ids of its requests end with it."""
        return self.peers.router_id

    def headers_for(self, worker: Worker) -> tuple[tuple[str, str], ...]:
        """What shows the worker that a request comes from a router of its own.

        Only for those that the registry knows: an address on the command line may be anybody's engine.
        """
        return self.worker_headers if worker.engine_id or self.settings.trust_static_workers else ()
