"""Builds the parts of one router."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.net.deadlines import Timeouts
from baton_serve.core.net.late_writes import LateWrites
from baton_serve.core.net.served.body import BodyBudget
from baton_serve.core.net.tls import InternalTls
from baton_serve.core.protocol.request_ids import new_router_id
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.core.protocol.token_keys import vllm_handshake_key
from baton_serve.core.protocol.vllm_keys import VllmKeys
from baton_serve.router.engines.baton.engine import BatonEngine
from baton_serve.router.engines.plain import PlainEngine
from baton_serve.router.engines.port import Engines
from baton_serve.router.parts import Leases, Requests, Workers
from baton_serve.router.peers.cleanup import Cleanup
from baton_serve.router.peers.port import PeerRouters, Routers
from baton_serve.router.placement import DECODE_POLICIES, PREFILL_POLICIES, SkipPrefillRule
from baton_serve.router.placement.policies.affinity import Affinity
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.pool.kind import EngineKind
from baton_serve.router.pool.liveness import Liveness
from baton_serve.router.pool.lost import LostWorkers
from baton_serve.router.pool.readiness import Readiness
from baton_serve.router.queue.lease_limit import LeaseLimit
from baton_serve.router.queue.priorities import PriorityClasses
from baton_serve.router.queue.queues import Queues
from baton_serve.router.queue.retry_budget import RetryBudget
from baton_serve.router.renewal.port import LeaseRenewer
from baton_serve.router.request.active import ActiveRequests
from baton_serve.router.request.attempts import Limits
from baton_serve.router.request.ended import EndedRequests
from baton_serve.router.request.held import Releaser
from baton_serve.router.settings import RouterSettings
from baton_serve.router.steps.admission import Admission
from baton_serve.router.steps.attempt import Legs
from baton_serve.router.steps.choices import ChoicesRunner
from baton_serve.router.steps.exit import Exit
from baton_serve.router.steps.intake import Intake
from baton_serve.router.steps.judge import Judge
from baton_serve.router.steps.records import RecordMaker
from baton_serve.router.steps.relay import Relay
from baton_serve.router.steps.run import Runner
from baton_serve.router.steps.waiting import Waiting
from baton_serve.router.telemetry.metrics.metrics import Metrics
from baton_serve.router.upstream.direct_releases import DirectReleases
from baton_serve.router.upstream.internal_calls import InternalCalls
from baton_serve.router.upstream.missing_engines import MissingEngines
from baton_serve.router.upstream.prefill_aborts import PrefillAborts
from baton_serve.router.vllm.engine.engine import StoredLeases, VllmEngine
from baton_serve.router.vllm.kind import VLLM, all_have_fence
from baton_serve.router.vllm.leases.vllm_leases import VllmLeases

#: Most seconds to wait for a connection to a worker.
CONNECT_TIMEOUT_S = 3.0


class Router(NamedTuple):
    """The parts of one router."""

    workers: Workers
    requests: Requests
    leases: Leases
    routers: Routers
    intake: Intake
    #: Leases on vLLM's prefill workers, and their side channels.
    vllm_leases: VllmLeases


def build_router(
    settings: RouterSettings, renewer: LeaseRenewer, peers: PeerRouters | None = None, tls: InternalTls | None = None
) -> Router:
    """Build the parts that one router's requests share. Needs a running loop. ``peers`` None: no other routers."""
    token = None if settings.internal_token is None else settings.internal_token.get_secret_value()
    late_writes = LateWrites(asyncio.get_running_loop())
    metrics = Metrics()
    active = ActiveRequests()
    workers = _workers(settings, metrics, HttpClient(CONNECT_TIMEOUT_S, tls, late_writes), token)
    pool = workers.pool
    leases = Leases(
        renewer,
        PrefillAborts(workers.calls, settings.lease_duration_ms / 1e3),
        DirectReleases(workers.calls, pool.with_engine, renewer.released_by_engine),
        MissingEngines(workers.calls, pool.knows_engine, active.leases_on, active.engine_gone, active.leases_lost),
    )
    requests = Requests(active, Queues(pool.leave), EndedRequests(), metrics)
    alone = PeerRouters(RouterRecord(router_id=new_router_id(), url="", internal_url=""))
    routers = Routers(alone if peers is None else peers, Cleanup(workers.calls, lambda: workers.pool))
    vllm_leases = VllmLeases(
        settings.vllm_lease_duration_s, handshake_key=None if token is None else vllm_handshake_key(token)
    )
    intake = _intake(settings, workers, requests, leases, vllm_leases, late_writes)
    _connect(workers, requests, leases, routers)
    pool.on_gone.append(vllm_leases.forget)
    names = intake.priorities.names
    metrics.waiting.update({(queue, name): 0 for queue in ("prefill", "held") for name in names})
    return Router(workers, requests, leases, routers, intake, vllm_leases)


def _workers(settings: RouterSettings, metrics: Metrics, upstream: HttpClient, token: str | None) -> Workers:
    pool = WorkerPool(settings.default_max_in_flight, breaker_failures=settings.breaker_failures, vllm=VLLM)
    vllm_keys = VllmKeys(settings.vllm_api_keys)

    def came(worker: Worker) -> None:
        if not worker.kind.may_be_ours or not settings.trust_static_workers:
            upstream.foreign.add(worker.url)
        if worker.kind is VLLM:
            upstream.use_key(worker.url, vllm_keys.of(worker.url, "" if worker.given is None else worker.given.url))

    def left(worker: Worker) -> None:
        upstream.foreign.discard(worker.url)
        upstream.use_key(worker.url, "")

    pool.on_static.append(came)
    pool.on_left.append(left)
    return Workers(
        pool,
        LostWorkers(metrics.of_workers.lost),
        Readiness(pool, settings.ready_prefill_wait_s, time.monotonic),
        LeaseLimit(settings.max_leased_fraction, pool),
        upstream,
        InternalCalls(upstream, token),
    )


def _intake(
    settings: RouterSettings,
    workers: Workers,
    requests: Requests,
    leases: Leases,
    vllm_leases: VllmLeases,
    late_writes: LateWrites,
) -> Intake:
    loop = asyncio.get_running_loop()
    pool, lease_limit = workers.pool, workers.lease_limit
    active, queues, metrics = requests.active, requests.queues, requests.metrics
    # Without Redis no vLLM server shares the store.
    stored = StoredLeases(leases.renewer, lambda: all_have_fence(pool)) if settings.redis_url else None
    engines: Engines = {
        EngineKind.BATON: BatonEngine(leases.renewer, lease_limit),
        EngineKind.PLAIN: PlainEngine(leases.renewer, lease_limit),
        EngineKind.VLLM: VllmEngine(vllm_leases, stored, settings.max_event_bytes),
    }
    pick_decode = DECODE_POLICIES[settings.pick_decode](pool.on_gone)
    knows_caches = pick_decode if isinstance(pick_decode, Affinity) else None
    rule = SkipPrefillRule(settings.min_prefill_tokens, settings.min_uncached_tokens, knows_caches)
    priorities = PriorityClasses(settings.priority_classes)
    retry_budget = RetryBudget(settings.retry_budget_fraction, settings.retry_budget_floor_per_s)
    limits = Limits(
        settings.max_prefill_attempts,
        settings.max_decode_attempts,
        settings.max_resumes,
        settings.max_worker_deaths,
    )
    token = settings.internal_token
    headers = () if token is None else (("x-baton-internal-token", token.get_secret_value()),)
    judge = Judge(pool, metrics)
    admission = Admission(settings, active, queues, metrics)
    waiting = Waiting(
        settings.held_timeout_s, pool, queues, admission, priorities, Timeouts(loop), leases.prefill_aborts, metrics
    )
    legs = Legs(
        settings,
        workers.upstream,
        engines,
        headers,
        pool,
        waiting,
        queues,
        PREFILL_POLICIES[settings.pick_prefill](pool.on_gone),
        pick_decode,
        rule,
        lease_limit,
        leases.missing_engines,
        Liveness(workers.upstream),
        retry_budget,
        metrics,
    )
    runner = Runner(legs, Relay(judge, metrics.itl, settings.max_event_bytes), judge)
    releaser = Releaser(pool, lease_limit, leases.prefill_aborts)
    return Intake(
        late_writes,
        BodyBudget(settings.max_bodies_bytes),
        priorities,
        admission,
        RecordMaker(settings, active, pool, engines, limits, retry_budget, releaser, loop.time),
        runner,
        ChoicesRunner(runner, admission, active, pool),
        Exit(active, metrics, requests.ended, logs_all=settings.log_requests),
    )


def _connect(workers: Workers, requests: Requests, leases: Leases, routers: Routers) -> None:
    """Have the parts hear of what happens in others."""
    pool, lost, active, metrics = workers.pool, workers.lost, requests.active, requests.metrics
    routers.peers.on_dead.append(routers.cleanup.start)
    leases.renewer.on_unsent.append(leases.direct_releases.start)
    pool.on_room += [requests.queues.held.wake, requests.queues.prefill.wake]
    pool.on_left += [leases.missing_engines.ask, lost.left, lambda _: lost.came(pool)]
    pool.on_came += [lambda: lost.came(pool), lambda: metrics.models.workers_list(pool.models())]
    pool.on_replaced.append(active.engine_gone)
