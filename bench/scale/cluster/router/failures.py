"""What follows when a leg fails or a lease is lost, by the table of failures; see ``router.steps.judge``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.core.protocol.errors import UpstreamError
from baton_serve.router.request.attempts import Situation
from baton_serve.router.request.failure_table import Failure, Leg, Next
from bench.scale.cluster.request import End

if TYPE_CHECKING:
    from baton_serve.router.pool import Worker
    from bench.scale.cluster.request import Request
    from bench.scale.cluster.router.first_leg import FirstLeg
    from bench.scale.cluster.router.parts import Parts
    from bench.scale.cluster.router.places import Places
    from bench.scale.cluster.router.second_leg import SecondLeg


class Failures:
    """``may_read_again``: whether another D may read the blocks of a D that failed."""

    def __init__(
        self, parts: Parts, places: Places, first_leg: FirstLeg, second_leg: SecondLeg, *, may_read_again: bool
    ) -> None:
        self._parts = parts
        self._places = places
        self._first_leg = first_leg
        self._second_leg = second_leg
        self._may_read_again = may_read_again

    def lost(self, request: Request, leg: int, died: str) -> None:
        """The engine ``died`` with a leg of the request, which may be over."""
        reservation = request.reservation
        if request.leg != leg or request.end is not None or reservation is None:
            return
        if reservation.worker.engine_id == died:
            self.failed(request, _leg_of(request, reservation.worker), Failure.DIED, reservation.worker)

    def failed(self, request: Request, leg: Leg, failure: Failure, worker: Worker) -> None:
        """A leg failed on a worker: release the place, judge the worker, and do what the table of failures says."""
        pool = self._parts.decides.pool
        if failure is Failure.NOT_TAKEN:
            pool.unreachable(worker)
        elif failure is not Failure.READ_FAILED:
            pool.failed(worker)
        self._places.vacate(request)
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
                has_lease=has_lease and self._may_read_again,
            ),
        )

    def lease_lost(self, request: Request, lease_id: str) -> None:
        """See ``Owner``."""
        if request.lease_id == lease_id and request.end is None:
            self._places.vacate(request)
            self._decide(request, Situation(Leg.HELD, Failure.LEASE_LOST, UpstreamError("The lease is lost.")))

    def engine_gone(self, engine_id: str) -> None:
        """An engine left the registry's list, and all its blocks are lost: none of these is only late."""
        for request in [*self._parts.decides.active.values()]:
            if request.source is not None and request.source.engine_id == engine_id:
                self.lease_lost(request, request.lease_id)

    def _decide(self, request: Request, situation: Situation) -> None:
        request.leg += 1
        decision = request.attempts.after(situation, self._parts.loop.now_s)
        if decision.next is Next.GIVE_UP:
            self._places.end(request, End.FAILED)
            return
        if decision.next is Next.SAME_BLOCKS and request.source is not None:
            source = self._parts.decides.pool.get(request.source.engine_id)
            if source is not None:
                self._second_leg.find(request, source)
                return
        self._places.drop_lease(request)
        request.wasted += request.computed
        request.computed = 0
        self._first_leg.find(request)


def _leg_of(request: Request, worker: Worker) -> Leg:
    if request.source is not None:
        return Leg.DECODE
    return Leg.STREAM if worker.role == "decode" else Leg.PREFILL
