"""A simulated router: the steps of a request, each decided by the real router's code (``decisions``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.core.protocol.errors import ApiError
from bench.scale.cluster.request import End, Request
from bench.scale.cluster.router.failures import Failures
from bench.scale.cluster.router.first_leg import FirstLeg
from bench.scale.cluster.router.places import Places
from bench.scale.cluster.router.second_leg import SecondLeg
from bench.scale.load.job import MODEL

if TYPE_CHECKING:
    from baton_serve.router.pool import Worker
    from baton_serve.router.request.failure_table import Failure, Leg
    from bench.scale.cluster.engines.prefill import PrefillEngine
    from bench.scale.cluster.router.parts import Parts
    from bench.scale.load.job import Job


class SimulatedRouter:
    """One router, which is an ``Asker``. ``chooses_early``: see ``FirstLeg``."""

    def __init__(self, parts: Parts, *, chooses_early: bool = False) -> None:
        self.name = parts.name
        self.is_alive = True
        self.cpu = parts.cpu
        self.decides = parts.decides
        self._parts = parts
        self._places = Places(parts)
        self.second_leg = SecondLeg(parts, self._places, self)
        self.first_leg = FirstLeg(parts, self._places, self.second_leg, self, chooses_early=chooses_early)
        self._failures = Failures(
            parts, self._places, self.first_leg, self.second_leg, may_read_again=not chooses_early
        )
        parts.decides.pool.on_gone.append(self._failures.engine_gone)

    def __repr__(self) -> str:
        return f"<SimulatedRouter {self.name} {len(self.decides.active)} requests>"

    def come(self, job: Job, number: int) -> None:
        """Take a new request; it is let in when the router gets to it."""
        self._parts.outcome.came()
        request = self.new_request(job, number)
        self.decides.active[number] = request
        self._places.when_free(request, self._let_in)

    def new_request(self, job: Job, number: int) -> Request:
        """The record of a request that has come."""
        return Request(number, job, self.decides.attempts(self._parts.loop.now_s))

    def die(self) -> None:
        """End the router: its clients see their connections break."""
        self.is_alive = False
        for request in [*self.decides.active.values()]:
            self._places.die_with(request)
        self._parts.leases.router_died(self.name)

    def _let_in(self, request: Request) -> None:
        admission = self.decides.admission
        try:
            admission.check_requests(-1)  # this one is active already
            route = self.decides.pool.route(MODEL)
            admission.make_room(route, request.job.priority, request.job.num_tokens * 4)
        except ApiError:
            self._places.end(request, End.REFUSED)
            return
        self.first_leg.find(request)

    def prefilled(self, request: Request, engine: PrefillEngine) -> None:
        """See ``Asker``."""
        self.first_leg.prefilled(request, engine)

    def reads(self, request: Request, num_tokens: int) -> None:
        """See ``Asker``."""
        self.second_leg.reads(request, num_tokens)

    def has_read(self, request: Request) -> bool:
        """See ``Asker``."""
        return self.second_leg.has_read(request)

    def first_byte(self, request: Request, leg: int) -> None:
        """See ``Asker``."""
        self.second_leg.first_byte(request, leg)

    def finished(self, request: Request) -> None:
        """See ``Asker``."""
        self.second_leg.finished(request)

    def lost(self, request: Request, leg: int, died: str) -> None:
        """See ``Failures``."""
        if self.is_alive:
            self._failures.lost(request, leg, died)

    def failed(self, request: Request, leg: Leg, failure: Failure, worker: Worker) -> None:
        """See ``Owner``."""
        self._failures.failed(request, leg, failure, worker)

    def lease_lost(self, request: Request, lease_id: str) -> None:
        """See ``Owner``."""
        self._failures.lease_lost(request, lease_id)
