"""``run(settings)``: one router process, from sockets to exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING

import uvloop

from leases.memory_store import MemoryLeaseStore
from leases.redis_store import RedisLeaseStore
from protocol.log import set_up_logging
from protocol.status import Failed, Progress, Ready, encode
from registry.announcement import WORKERS
from registry.memory_registry import MemoryRegistry
from registry.redis_registry import RedisRegistry
from registry.task_end import end_task
from router.app import create_app
from router.build import build_services
from router.discovery import discover
from router.health import HealthProbes
from router.lease_client import LeaseClient
from router.lease_view import LeaseListing
from router.server import RouterServer, listen

if TYPE_CHECKING:
    import socket

    from leases.store import LeaseStore
    from protocol.status import Status
    from protocol.worker import WorkerStatus
    from registry.store import Registry
    from router.settings import RouterSettings

logger = logging.getLogger(__name__)

#: Libraries that have a line for every request or connection.
QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access")


def run(settings: RouterSettings) -> int:
    """Serve until SIGTERM or SIGINT. 0: stopped in order; 1: could not start, one line on stderr says why."""
    set_up_logging(settings.log_level, settings.log_format, QUIET)
    try:
        sock = listen(settings.host, settings.port)
    except OSError as error:
        return _fail(settings, str(error.strerror))
    with contextlib.closing(sock):
        try:
            stores = connect(settings)
        except ValueError:  # an option in the URL; the message may repeat it
            return _fail(settings, "redis_url is not understood by the Redis client")
        uvloop.run(serve(settings, sock, stores))
    return 0


async def serve(settings: RouterSettings, sock: socket.socket, stores: Stores) -> None:
    """Serve on a bound socket until told to stop; then close everything in the order that nothing is needed after."""
    tell(settings, Progress(text="router: connecting"))
    leases = LeaseClient(stores.leases, settings)
    services = build_services(settings, leases)
    probes = HealthProbes(services.upstream, services.pool)
    services.pool.add_static(settings.prefill, settings.decode)
    watch = asyncio.get_running_loop().create_task(discover(stores.registry, services.pool))
    front = create_app(services, LeaseListing(stores.leases))
    url = _url(settings.host, sock)

    def on_ready() -> None:
        logger.info("serving on %s", url)
        tell(settings, Ready(url=url))

    server = RouterServer(front, services, on_ready=on_ready)
    try:
        await server.serve(sockets=[sock])
    finally:
        await end_task(watch)
        await probes.close()
        await services.prefill_aborts.close()
        await services.cleanup.close()
        await services.upstream.close()
        await leases.close()
        await stores.registry.close()
        stores.leases.close()


class Stores:
    """Where leases and worker records live."""

    def __init__(self, leases: LeaseStore, registry: Registry[WorkerStatus]) -> None:
        self.leases = leases
        self.registry = registry


def connect(settings: RouterSettings) -> Stores:
    """Redis, or nothing shared at all. Connections are made when first needed. Raises ValueError for a useless URL."""
    if not settings.redis_url:
        return Stores(MemoryLeaseStore(), MemoryRegistry(WORKERS))
    return Stores(RedisLeaseStore(settings.redis_url), RedisRegistry(settings.redis_url, WORKERS))


def tell(settings: RouterSettings, status: Status) -> None:
    """A line for the parent process, if there is one that listens."""
    if settings.status_fd is not None:
        with contextlib.suppress(OSError):  # the parent may have gone
            os.write(settings.status_fd, encode(status))


def _fail(settings: RouterSettings, error: str) -> int:
    tell(settings, Failed(error=error))
    print(f"router: {error}", file=sys.stderr)
    return 1


def _url(host: str, sock: socket.socket) -> str:
    port = sock.getsockname()[1]
    shown = (
        "127.0.0.1" if host in {"", "0.0.0.0"} else "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    )
    return f"http://{shown}:{port}"
