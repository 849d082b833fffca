"""``run(settings)``: one router process, from sockets to exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
from collections import Counter
from dataclasses import dataclass

import uvloop

from baton_serve.core.leases.store import LeaseStore
from baton_serve.core.net.served.config import raise_descriptor_limit
from baton_serve.core.net.sockets import base_url, listen, port_of
from baton_serve.core.net.tls import TlsError
from baton_serve.core.process import failpoints
from baton_serve.core.process.allocator import keep_memory
from baton_serve.core.process.log import set_up_logging
from baton_serve.core.process.status_pipe import StatusPipe
from baton_serve.core.process.task_end import end_task
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.core.protocol.status import Progress, Ready
from baton_serve.core.protocol.token_keys import hello_key
from baton_serve.core.protocol.vllm_server import VllmStatus
from baton_serve.core.protocol.worker import WorkerStatus
from baton_serve.core.registry.announcement import ROUTERS, VLLM_SERVERS, WORKERS
from baton_serve.core.registry.store import Registry
from baton_serve.core.stores import complaint, lease_store, registry
from baton_serve.router.admin import LocalRouter
from baton_serve.router.admin.shared_workers import learn_from_others
from baton_serve.router.apps.collector import RouterCollector
from baton_serve.router.apps.internal import internal_app
from baton_serve.router.apps.public import create_app
from baton_serve.router.build import build_router
from baton_serve.router.dashboard.recorder import HistoryRecorder
from baton_serve.router.edge.tls import OnlyTls, RouterTls, load_tls
from baton_serve.router.front.server import RouterServer
from baton_serve.router.peers.membership import Membership
from baton_serve.router.pool.discovery import discover
from baton_serve.router.pool.health import HealthProbes
from baton_serve.router.pool.proven_workers import ProvenWorkers
from baton_serve.router.renewal.lease_client import LeaseClient
from baton_serve.router.settings import RouterSettings
from baton_serve.router.upstream.internal_calls import WorkerHello
from baton_serve.router.vllm.servers.announced import AnnouncedServers
from baton_serve.router.vllm.servers.watchers import VllmWorkers

logger = logging.getLogger(__name__)

#: The name of this process in its message about why it cannot start.
WHO = "router"
#: Seconds after which a busy event loop lets another thread go on that waits for the interpreter; Python's default is
#: 0.005. The thread that renews leases waits several times in each round: beside a thread that never waits, a round of
#: 30,000 leases on 64 engines took 113 ms with this, and 144 ms with the default.
SWITCH_INTERVAL_S = 0.0005
#: Library loggers that write a line for every request or connection.
QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access")

#: Most seconds to wait for the registry before requests are accepted: Redis may be unreachable.
FIRST_NEWS_S = 2.0

#: Free memory that a router keeps, and the largest piece that it has from its heap: a long prompt and its encoding are
#: made for each request. Without this a request of 100 KB took 5 to 10 % more CPU time.
KEPT_BYTES, KEPT_PIECE_BYTES = 64 << 20, 4 << 20


def run(settings: RouterSettings) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0 after that, or 1 if it could not start, with the reason on stderr."""
    set_up_logging(settings.log_level, settings.log_format, QUIET)
    failpoints.arm(os.environ)
    raise_descriptor_limit()
    keep_memory(KEPT_BYTES, KEPT_PIECE_BYTES)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    pipe = StatusPipe(settings.status_fd)
    try:
        tls = load_tls(settings)
    except TlsError as error:
        return pipe.give_up(WHO, str(error))
    try:
        sock = listen(settings.host, settings.port, shared=bool(settings.group))
    except OSError as error:
        return pipe.give_up(WHO, str(error.strerror))
    with contextlib.ExitStack() as bound:
        bound.enter_context(contextlib.closing(sock))
        internal = None
        try:
            why = complaint(settings)
            if why is not None:
                return pipe.give_up(WHO, why)
            stores = connect(settings)
            if stores.routers is not None:
                internal = listen(settings.bound_internal_host, settings.internal_port)
                bound.enter_context(contextlib.closing(internal))
        except ValueError:  # an option in the URL is wrong; the client's message could contain a password
            return pipe.give_up(WHO, "redis_url is not understood by the Redis client")
        except OSError as error:
            return pipe.give_up(WHO, f"internal port: {error.strerror}")
        uvloop.run(serve(settings, sock, stores, pipe, internal, tls))
    return 0


async def serve(
    settings: RouterSettings,
    sock: socket.socket,
    stores: RouterStores,
    pipe: StatusPipe,
    internal: socket.socket | None = None,
    tls: RouterTls = RouterTls(),  # noqa: B008 (frozen)
) -> None:
    """Serve on bound sockets until asked to stop; then close all parts, each before the parts that it needs, even if
    another one fails.

    ``internal`` is the socket for other routers; None without Redis, since there are no others then.
    """
    pipe.tell(Progress(text="router: connecting"))
    async with contextlib.AsyncExitStack() as parts:  # what is entered last is closed first
        parts.callback(stores.leases.close)
        parts.push_async_callback(stores.vllm_servers.close)
        parts.push_async_callback(stores.registry.close)
        await _serve(parts, settings, sock, stores, pipe, internal, tls)


async def _serve(
    parts: contextlib.AsyncExitStack,
    settings: RouterSettings,
    sock: socket.socket,
    stores: RouterStores,
    pipe: StatusPipe,
    internal: socket.socket | None,
    tls: RouterTls,
) -> None:
    renewer = LeaseClient(
        stores.leases,
        duration_ms=settings.lease_duration_ms,
        renew_interval_ms=settings.lease_renew_interval_ms,
        redis_grace_ms=settings.redis_grace_ms,
    )
    membership = None
    if stores.routers is not None and internal is not None:
        membership = Membership(settings, stores.routers, sock, internal, tls.internal)
        parts.push_async_callback(membership.stop)
    router = build_router(settings, renewer, None if membership is None else membership.peers, tls.internal)
    workers, requests, leases, routers, intake, vllm_leases = router
    metrics = requests.metrics
    metrics.of_workers.ignored_announcements = stores.ignored
    for close in (
        vllm_leases.close,
        workers.upstream.close,
        leases.missing_engines.close,
        leases.direct_releases.close,
        renewer.close,
        routers.cleanup.close,
        leases.prefill_aborts.close,
    ):
        parts.push_async_callback(close)
    token = settings.internal_token
    hello = None if token is None else WorkerHello(workers.upstream, hello_key(token.get_secret_value()))
    proven = ProvenWorkers(workers.pool, hello, metrics.of_workers.proofs)
    probes = HealthProbes(workers.upstream, workers.pool, hello)
    vllm_workers = VllmWorkers(
        workers.pool,
        workers.upstream,
        vllm_leases,
        poll_interval_s=settings.vllm_poll_interval_ms / 1e3,
        dns_interval_s=settings.dns_interval_s,
        unexpected_expiries=metrics.of_workers.vllm_unexpected_expiries,
        outcomes=metrics.of_workers.vllm_polls,
    )
    for close in (vllm_workers.close, probes.close, proven.close):
        parts.push_async_callback(close)
    workers.pool.add_static(settings.prefill, settings.decode)
    if settings.prefill and not settings.decode:
        logger.warning("prefill workers were given and no decode worker: decode workers have to come from the registry")
    follower = proven if tls.internal is None else OnlyTls(proven)
    announced = AnnouncedServers(workers.pool, only_tls=tls.internal is not None)
    stores.registry.on_withdrawn.append(workers.pool.withdrew)
    stores.vllm_servers.on_withdrawn.append(announced.withdrew)
    for watch in (discover(stores.registry, follower), discover(stores.vllm_servers, announced)):
        parts.push_async_callback(end_task, asyncio.create_task(watch))
    parts.callback(routers.peers.on_dead.clear)  # a listener would start ``cleanup``, which closes soon
    recorder = HistoryRecorder(requests)
    here = LocalRouter(workers, requests, renewer, routers.peers.router_id)
    numbers = RouterCollector(workers, requests, leases, vllm_leases.counters, routers.cleanup)
    front = create_app(settings, workers, requests, routers.peers, intake, here, numbers, stores.leases, recorder)
    url = _url(settings, sock)

    def on_ready() -> None:
        gc.collect()
        gc.freeze()  # what is there now stays, and would only make the pauses of the garbage collector longer
        gc.set_threshold(20_000, 20, 20)  # requests leave hardly any cycles; by default looking for them costs 9 % of A
        logger.info("serving on %s", url)
        internal_url = "" if membership is None else membership.peers.record.internal_url
        pipe.tell(Ready(url=url, internal_url=internal_url))

    server = RouterServer(front, settings, requests.active, intake.late_writes, on_ready=on_ready, tls=tls.public)
    if membership is not None:
        internal_pages = internal_app(workers, requests, here, numbers, recorder)
        await membership.start(internal_pages, intake.body_budget)
        learning = asyncio.create_task(learn_from_others(workers.pool, membership.peers))
        parts.push_async_callback(end_task, learning)
        await _first_news(proven.met, membership.peers.met)
    await server.serve(sockets=[sock])


async def _first_news(*heard: asyncio.Event) -> None:
    """Wait for the registry's first list of workers and of routers, at most ``FIRST_NEWS_S``.

    Otherwise the first requests would find no worker, and lists and sums would silently lack the other routers.
    Meanwhile, connections wait in the backlog of the port.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FIRST_NEWS_S):
            for event in heard:
                await event.wait()


@dataclass(frozen=True)
class RouterStores:
    """The stores of leases, and of the records of workers, vLLM servers and routers."""

    leases: LeaseStore
    registry: Registry[WorkerStatus]
    vllm_servers: Registry[VllmStatus]
    #: None: this router does not connect to other routers.
    routers: Registry[RouterRecord] | None = None

    def ignored(self) -> Counter[tuple[str, str]]:
        """Announcements that were ignored: unsigned, wrongly signed or not Baton's; by kind and reason."""
        registries = {WORKERS.name: self.registry.ignored, VLLM_SERVERS.name: self.vllm_servers.ignored}
        if self.routers is not None:
            registries[ROUTERS.name] = self.routers.ignored
        return Counter({(kind, why): n for kind, ignored in registries.items() for why, n in ignored.items()})


def connect(settings: RouterSettings) -> RouterStores:
    """Make the stores; with an empty ``redis_url`` nothing is shared. Raises ValueError for an invalid Redis URL."""
    routers = registry(settings, ROUTERS) if settings.redis_url else None
    workers, vllm_servers = registry(settings, WORKERS), registry(settings, VLLM_SERVERS)
    return RouterStores(lease_store(settings), workers, vllm_servers, routers)


def _url(settings: RouterSettings, sock: socket.socket) -> str:
    """The API's URL for users on this machine."""
    shown = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return base_url(shown, port_of(sock), tls=settings.speaks_tls)
