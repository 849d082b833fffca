"""Builds the parts that the requests of one router share."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.net.deadlines import Timeouts
from baton_serve.core.net.late_writes import LateWrites
from baton_serve.core.net.served.body import BodyBudget
from baton_serve.core.protocol.request_ids import new_router_id
from baton_serve.core.protocol.token_keys import vllm_handshake_key
from baton_serve.core.protocol.vllm_keys import VllmKeys
from baton_serve.router.engines.baton.engine import BatonEngine
from baton_serve.router.engines.engines import Engines
from baton_serve.router.engines.plain import PlainEngine
from baton_serve.router.metrics.metrics import Metrics
from baton_serve.router.peers.cleanup import Cleanup
from baton_serve.router.peers.port import NoPeers
from baton_serve.router.placement import DECODE_POLICIES, PREFILL_POLICIES, SkipPrefillRule
from baton_serve.router.placement.affinity import Affinity
from baton_serve.router.pool import WorkerPool
from baton_serve.router.pool.kind import EngineKind
from baton_serve.router.pool.liveness import Liveness
from baton_serve.router.pool.lost import LostWorkers
from baton_serve.router.pool.readiness import Readiness
from baton_serve.router.queue.lease_limit import LeaseLimit
from baton_serve.router.queue.priorities import PriorityClasses
from baton_serve.router.queue.retry_budget import RetryBudget
from baton_serve.router.queue.worker_queue import WorkerQueue
from baton_serve.router.request.active import ActiveRequests
from baton_serve.router.request.attempts import Limits
from baton_serve.router.request.releaser import Releaser
from baton_serve.router.services import Services
from baton_serve.router.upstream.direct_releases import DirectReleases
from baton_serve.router.upstream.internal_calls import InternalCalls
from baton_serve.router.upstream.missing_engines import MissingEngines
from baton_serve.router.upstream.prefill_aborts import PrefillAborts
from baton_serve.router.vllm.engine.engine import StoredLeases, VllmEngine
from baton_serve.router.vllm.kind import VLLM, all_have_fence
from baton_serve.router.vllm.leases.vllm_leases import VllmLeases

if TYPE_CHECKING:
    from baton_serve.core.net.tls import InternalTls
    from baton_serve.router.peers.port import PeerRouters
    from baton_serve.router.pool import Worker
    from baton_serve.router.renewal.port import LeaseRenewer
    from baton_serve.router.settings import RouterSettings

#: Most seconds to wait for a connection to a worker.
CONNECT_TIMEOUT_S = 3.0


def build_services(
    settings: RouterSettings, leases: LeaseRenewer, peers: PeerRouters | None = None, tls: InternalTls | None = None
) -> Services:
    """Build the parts that one router's requests share. Needs a running loop. ``peers`` None: no other routers."""
    pool = WorkerPool(settings.default_max_in_flight, breaker_failures=settings.breaker_failures, vllm=VLLM)
    prefill_queue, held_queue = WorkerQueue(pool.leave), WorkerQueue(pool.leave)
    token = None if settings.internal_token is None else settings.internal_token.get_secret_value()
    loop = asyncio.get_running_loop()
    late_writes = LateWrites(loop)
    upstream = HttpClient(CONNECT_TIMEOUT_S, tls, late_writes)
    calls = InternalCalls(upstream, token)
    pick_decode = DECODE_POLICIES[settings.pick_decode](pool.on_gone)
    prefill_aborts = PrefillAborts(calls, settings.lease_duration_ms / 1e3)
    lease_limit = LeaseLimit(settings.max_leased_fraction, pool)
    active = ActiveRequests()
    vllm_leases = VllmLeases(
        settings.vllm_lease_duration_s, handshake_key=None if token is None else vllm_handshake_key(token)
    )
    # Without Redis no vLLM server shares the store.
    stored = StoredLeases(leases, lambda: all_have_fence(pool)) if settings.redis_url else None
    metrics = Metrics()
    lost = LostWorkers(metrics.workers_lost)
    services = Services(
        settings=settings,
        clock=loop.time,
        late_writes=late_writes,
        upstream=upstream,
        pool=pool,
        prefill_queue=prefill_queue,
        held_queue=held_queue,
        pick_prefill=PREFILL_POLICIES[settings.pick_prefill](pool.on_gone),
        pick_decode=pick_decode,
        leases=leases,
        engines=Engines(
            {
                EngineKind.BATON: BatonEngine(leases, lease_limit),
                EngineKind.PLAIN: PlainEngine(leases, lease_limit),
                EngineKind.VLLM: VllmEngine(vllm_leases, stored, settings.max_event_bytes),
            }
        ),
        vllm_leases=vllm_leases,
        skip_prefill=SkipPrefillRule(
            settings.min_prefill_tokens,
            settings.min_uncached_tokens,
            pick_decode if isinstance(pick_decode, Affinity) else None,
        ),
        priorities=PriorityClasses(settings.priority_classes),
        limits=Limits(
            settings.max_prefill_attempts,
            settings.max_decode_attempts,
            settings.max_resumes,
            settings.max_worker_deaths,
        ),
        retry_budget=RetryBudget(settings.retry_budget_fraction, settings.retry_budget_floor_per_s),
        body_budget=BodyBudget(settings.max_bodies_bytes),
        timeouts=Timeouts(loop),
        readiness=Readiness(pool, settings.ready_prefill_wait_s, time.monotonic),
        lease_limit=lease_limit,
        releaser=Releaser(pool, lease_limit, prefill_aborts),
        liveness=Liveness(upstream),
        internal_calls=calls,
        prefill_aborts=prefill_aborts,
        direct_releases=DirectReleases(calls, pool.with_engine, leases.released_by_engine),
        missing_engines=MissingEngines(
            calls, pool.knows_engine, active.leases_on, active.engine_gone, active.leases_lost
        ),
        lost=lost,
        metrics=metrics,
        active=active,
        peers=NoPeers(new_router_id()) if peers is None else peers,
        cleanup=Cleanup(calls, lambda: pool),
        worker_headers=() if token is None else (("x-baton-internal-token", token),),
    )
    services.peers.on_dead.append(services.cleanup.start)
    leases.on_unsent.append(services.direct_releases.start)
    names = services.priorities.names
    services.metrics.waiting.update({(queue, name): 0 for queue in ("prefill", "held") for name in names})
    pool.on_static.append(lambda worker: _check_as_foreign(settings, upstream, worker))
    pool.on_left.append(lambda worker: _forget_server(upstream, worker))
    vllm_keys = VllmKeys(settings.vllm_api_keys)
    pool.on_static.append(lambda worker: _use_key(upstream, worker, vllm_keys))
    pool.on_room += [held_queue.wake, prefill_queue.wake]
    pool.on_left += [services.missing_engines.ask, lost.left, lambda _: lost.came(pool)]
    pool.on_came += [lambda: lost.came(pool), lambda: metrics.models.workers_list(pool.models())]
    pool.on_replaced.append(active.engine_gone)
    pool.on_gone.append(services.vllm_leases.forget)
    return services


def _check_as_foreign(settings: RouterSettings, upstream: HttpClient, worker: Worker) -> None:
    if not worker.kind.may_be_ours or not settings.trust_static_workers:
        upstream.foreign.add(worker.url)


def _use_key(upstream: HttpClient, worker: Worker, keys: VllmKeys) -> None:
    if worker.kind is VLLM:
        upstream.use_key(worker.url, keys.of(worker.url, "" if worker.given is None else worker.given.url))


def _forget_server(upstream: HttpClient, worker: Worker) -> None:
    upstream.foreign.discard(worker.url)
    upstream.use_key(worker.url, "")
