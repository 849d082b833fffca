"""Whether a load balancer should send requests here.

A deployment comes up in any order. A D that is there first could serve by itself, but then it would prefill what the
first clients ask, which P is for. So a router is not ready before it has known, of some model, a P with a D that can
read from it, or a worker that does both. From then on it is ready as long as anything can be served: a P that dies, or
is restarted, does not take the router away, since D can do without. One that has waited ``prefill_wait_s`` for a P in
vain takes it that there is none.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from core.protocol.errors import ApiError
from core.protocol.worker import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.pool import Route, WorkerPool


class ReadyStatus(StrEnum):
    """What ``/ready`` says."""

    OK = "ok"
    #: Nothing can be served.
    NO_WORKERS = "no_workers"
    #: D could serve, and a P has never been there.
    NO_PREFILL = "no_prefill_worker"


class Readiness:
    """One router's. ``clock``: any monotonic seconds."""

    def __init__(self, pool: WorkerPool, prefill_wait_s: float, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._clock = clock
        self._waits_until_s = clock() + prefill_wait_s
        self._was_complete = False
        pool.on_came.append(self._look)

    def state(self) -> ReadyStatus:
        """Now."""
        routes = self._routes()
        if not any(route.can_decode for route in routes):
            return ReadyStatus.NO_WORKERS
        self._was_complete = self._was_complete or any(map(_is_complete, routes))
        return ReadyStatus.OK if self._was_complete or self._clock() >= self._waits_until_s else ReadyStatus.NO_PREFILL

    def _look(self) -> None:
        """A worker has come: nobody may ask while it is there."""
        self._was_complete = self._was_complete or any(map(_is_complete, self._routes()))

    def _routes(self) -> list[Route]:
        """Of each model that can be served."""
        routes = []
        for model in self._pool.models():
            try:
                routes.append(self._pool.route(model))
            except ApiError:
                continue
        return routes


def _is_complete(route: Route) -> bool:
    """Each part of a request has a worker that is for it."""
    if route.single:
        return any(worker.takes_work and worker.role is Role.BOTH for worker in route.decode)
    sources = (worker for worker in route.prefill if worker.takes_work)
    return any(reader.takes_work for source in sources for reader in route.readers(source))
