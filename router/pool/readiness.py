"""Whether a load balancer should send requests here.

The parts of a deployment start in any order. A D that starts first could serve by itself, but would then prefill the
first prompts, which is P's task. So a router is not ready before it has known, for some model, a P with a D that can
read from it, or a worker with the role ``both``. From then on it is ready as long as anything can be served: a P that
dies or restarts does not make the router unready, since D can also prefill. A router that has waited
``prefill_wait_s`` for a P in vain assumes that there will be none.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from baton_serve.core.protocol.errors import ApiError
from baton_serve.core.protocol.worker import Role

if TYPE_CHECKING:
    from baton_serve.router.pool import Route, WorkerPool


class ReadyStatus(StrEnum):
    """What ``/ready`` answers."""

    OK = "ok"
    #: Nothing can be served.
    NO_WORKERS = "no_workers"
    #: A D could serve, but no P has been there yet.
    NO_PREFILL = "no_prefill_worker"


class Readiness:
    """Whether this router is ready. ``clock``: any monotonic seconds."""

    def __init__(self, pool: WorkerPool, prefill_wait_s: float, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._clock = clock
        self._waits_until_s = clock() + prefill_wait_s
        self._was_complete = False
        pool.on_came.append(self._look)

    def state(self) -> ReadyStatus:
        """What ``/ready`` answers now."""
        routes = self._routes()
        if not any(route.can_decode for route in routes):
            return ReadyStatus.NO_WORKERS
        self._was_complete = self._was_complete or any(map(_is_complete, routes))
        return ReadyStatus.OK if self._was_complete or self._clock() >= self._waits_until_s else ReadyStatus.NO_PREFILL

    def _look(self) -> None:
        """Check at once when a worker has come, since it may have left again when ``/ready`` is next asked."""
        self._was_complete = self._was_complete or any(map(_is_complete, self._routes()))

    def _routes(self) -> list[Route]:
        """The route of each model that can be served."""
        routes = []
        for model in self._pool.models():
            try:
                routes.append(self._pool.route(model))
            except ApiError:
                continue
        return routes


def _is_complete(route: Route) -> bool:
    """Whether there is a worker for each leg: a P with a D that can read from it, or one with the role ``both``."""
    if route.single:
        return any(worker.takes_work and worker.role is Role.BOTH for worker in route.decode)
    sources = (worker for worker in route.prefill if worker.takes_work)
    return any(reader.takes_work for source in sources for reader in route.readers(source))
