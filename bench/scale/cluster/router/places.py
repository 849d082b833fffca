"""What a request holds: a place in a queue, a place on a worker, a lease. Its end gives all of them back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from baton_serve.core.protocol.errors import UnavailableError
from baton_serve.router.placement import Ahead, Need
from baton_serve.router.pool import Reservation, Worker
from bench.scale.clock import SimulatedLoop
from bench.scale.cluster.engines.decode import DecodeEngine
from bench.scale.cluster.engines.prefill import PrefillEngine
from bench.scale.cluster.leases import Leases
from bench.scale.cluster.outcome import Outcome
from bench.scale.cluster.request import End, Request
from bench.scale.cluster.router.decisions import Decisions
from bench.scale.costs import Costs

if TYPE_CHECKING:
    from baton_serve.router.queue.worker_queue import Pick, WorkerQueue


#: The largest share of a core that counts: with more, the line would never end, and the router is too small anyhow.
MAX_SHARE = 0.98


class Cpu:
    """One core, with work in order. ``share``: the part of it that tokens of streams and reports of workers take."""

    def __init__(self) -> None:
        self.share = 0.0
        self._free_at_s = 0.0

    def ends_s(self, now_s: float, work_s: float) -> float:
        """When work that comes now is done."""
        self._free_at_s = max(now_s, self._free_at_s) + work_s / (1 - min(self.share, MAX_SHARE))
        return self._free_at_s


@dataclass(eq=False, repr=False)
class Places:
    """The places of one router's requests.

    ``machines`` are all engines, by their ids; ``leases`` and ``outcome`` are the cluster's. ``chooses_early``: D is
    chosen when P is, and the blocks are made for that D alone.
    """

    name: str
    loop: SimulatedLoop
    decides: Decisions
    leases: Leases
    machines: Mapping[str, PrefillEngine | DecodeEngine]
    costs: Costs
    outcome: Outcome
    chooses_early: bool = False
    cpu: Cpu = field(default_factory=Cpu)
    is_alive: bool = True

    def wait(
        self,
        request: Request,
        queue: WorkerQueue,
        pick: Pick,
        group: Hashable,
        need: Need,
        then: Callable[[Request, Worker], None],
    ) -> None:
        """Find a worker with ``pick``, now or later, and go on with ``then``; see ``router.steps.waiting``."""
        request.leg += 1
        reservation = None if len(queue) else pick(Ahead())
        if reservation is not None:
            request.reservation = reservation
            then(request, reservation.worker)
            return
        waiter = queue.enter(pick, 0, request.number, group, request.job.num_tokens * 4, need)
        waiter.may_be_refused = lambda: request.first_s < 0
        error = UnavailableError("No worker had room in time.", code="no_room")
        timer = self.loop.call_later(self.decides.settings.held_timeout_s, waiter.fail, error)
        waiter.future.add_done_callback(partial(self._placed, request, request.leg, queue, timer, then))

    def _placed(
        self,
        request: Request,
        leg: int,
        queue: WorkerQueue,
        timer: asyncio.TimerHandle,
        then: Callable[[Request, Worker], None],
        future: asyncio.Future[Reservation],
    ) -> None:
        timer.cancel()
        error = future.exception()
        is_late = request.leg != leg or request.end is not None
        if error is None and is_late:
            queue.give_back(future.result())
        elif error is None:
            request.reservation = future.result()
            then(request, request.reservation.worker)
        elif not is_late:
            is_no_room = isinstance(error, UnavailableError)
            self.end(request, End.NO_ROOM if is_no_room else End.DISPLACED)

    def when_free(self, request: Request, then: Callable[[Request], None]) -> None:
        """Go on with ``then`` when the router gets to it.

        Half of a request's work is done when it comes, the other half when P has answered.
        """
        work_s = self.costs.router_request_s / 2
        self.loop.call_at(self.cpu.ends_s(self.loop.now_s, work_s), self._if_live, request, request.leg, then)

    def _if_live(self, request: Request, leg: int, then: Callable[[Request], None]) -> None:
        if request.end is None and request.leg == leg:
            then(request)

    def vacate(self, request: Request) -> None:
        """Release the request's place on a worker, if it has one."""
        reservation, request.reservation = request.reservation, None
        if reservation is not None:
            self.decides.pool.leave(reservation)

    def drop_lease(self, request: Request) -> None:
        """Release the blocks that P keeps for the request, and the place on the D that was to read them."""
        if request.source is not None:
            self.leases.release(self.name, request.source, request.lease_id)
            self.decides.lease_limit.end(request.lease_id)
        request.source, request.lease_id = None, ""
        chosen, request.chosen = request.chosen, None
        if chosen is not None:
            self.decides.pool.leave(chosen)

    def end(self, request: Request, end: End) -> None:
        """End the request, and give back what it holds."""
        request.leg += 1
        del self.decides.active[request.number]
        self.drop_lease(request)
        self.vacate(request)
        self._count(request, end)

    def die_with(self, request: Request) -> None:
        """End a request of a router that died, which gives nothing back."""
        request.leg += 1
        del self.decides.active[request.number]
        self._count(request, End.ROUTER_DIED)

    def _count(self, request: Request, end: End) -> None:
        if end is not End.DONE:
            request.wasted += request.computed
        self.outcome.ended(request, end, self.loop.now_s)
