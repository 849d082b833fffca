"""A simulated router: the steps of a request, each decided by the real router's code (``decisions``); and what follows
when a leg fails or a lease is lost, by the table of failures, as in ``router.steps.judge``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.core.protocol.errors import ApiError, UpstreamError
from baton_serve.router.request.attempts import Situation
from baton_serve.router.request.failure_table import Failure, Leg, Next
from bench.scale.cluster.request import End, Request
from bench.scale.cluster.router.first_leg import FirstLeg
from bench.scale.load.job import MODEL

if TYPE_CHECKING:
    from baton_serve.router.pool import Worker
    from bench.scale.load.job import Job


class SimulatedRouter(FirstLeg):
    """One router, which is an ``Asker``."""

    def __repr__(self) -> str:
        return f"<SimulatedRouter {self.name} {len(self.decides.active)} requests>"

    def come(self, job: Job, number: int) -> None:
        """Take a new request; it is let in when the router gets to it."""
        self.outcome.came()
        request = self.new_request(job, number)
        self.decides.active[number] = request
        self.when_free(request, self._let_in)

    def new_request(self, job: Job, number: int) -> Request:
        """The record of a request that has come."""
        return Request(number, job, job.prompt(), self.decides.attempts(self.loop.now_s))

    def die(self) -> None:
        """End the router: its clients see their connections break."""
        self.is_alive = False
        for request in [*self.decides.active.values()]:
            self.die_with(request)
        self.leases.router_died(self.name)

    def _let_in(self, request: Request) -> None:
        admission = self.decides.admission
        try:
            admission.check_requests(-1)  # this one is active already
            route = self.decides.pool.route(MODEL)
            admission.make_room(route, request.job.priority, request.job.num_tokens * 4)
        except ApiError:
            self.end(request, End.REFUSED)
            return
        self.prefill(request)

    def lost(self, request: Request, leg: int, died: str) -> None:
        """The engine ``died`` with a leg of the request, which may be over."""
        reservation = request.reservation
        if not self.is_alive or request.leg != leg or request.end is not None or reservation is None:
            return
        if reservation.worker.engine_id == died:
            self.failed(request, _leg_of(request, reservation.worker), Failure.DIED, reservation.worker)

    def failed(self, request: Request, leg: Leg, failure: Failure, worker: Worker) -> None:
        """See ``Places``."""
        pool = self.decides.pool
        if failure is Failure.NOT_TAKEN:
            pool.unreachable(worker)
        elif failure is not Failure.READ_FAILED:
            pool.failed(worker)
        self.vacate(request)
        has_lease = request.source is not None and request.lease_id in request.source.leased
        self._decide(
            request,
            Situation(
                leg,
                failure,
                UpstreamError("A worker failed."),
                worker,
                engine=worker.key,
                num_tokens=request.num_sent,
                can_continue=True,
                has_lease=has_lease and not self.chooses_early,
            ),
        )

    def lease_lost(self, request: Request, lease_id: str) -> None:
        """See ``Places``."""
        if request.lease_id == lease_id and request.end is None:
            self.vacate(request)
            self._decide(request, Situation(Leg.HELD, Failure.LEASE_LOST, UpstreamError("The lease is lost.")))

    def engine_gone(self, engine_id: str) -> None:
        """See ``Places``."""
        for request in [*self.decides.active.values()]:
            if request.source is not None and request.source.engine_id == engine_id:
                self.lease_lost(request, request.lease_id)

    def _decide(self, request: Request, situation: Situation) -> None:
        request.leg += 1
        decision = request.attempts.after(situation, self.loop.now_s)
        if decision.next is Next.GIVE_UP:
            self.end(request, End.FAILED)
            return
        if decision.next is Next.SAME_BLOCKS and request.source is not None:
            source = self.decides.pool.get(request.source.engine_id)
            if source is not None:
                self.decode(request, source)
                return
        self.drop_lease(request)
        request.wasted += request.computed
        request.computed = 0
        self.prefill(request)


def _leg_of(request: Request, worker: Worker) -> Leg:
    if request.source is not None:
        return Leg.DECODE
    return Leg.STREAM if worker.role == "decode" else Leg.PREFILL
