"""The second leg: find a D with room, have it read P's blocks and decode; see ``router.steps.decode``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from baton_serve.router.placement import Prefilled, choose
from baton_serve.router.request.failure_table import Failure, Leg
from bench.scale.cluster.request import End
from bench.scale.cluster.router.places import Places
from bench.scale.load.job import MODEL

if TYPE_CHECKING:
    from collections.abc import Hashable

    from baton_serve.router.placement import Ahead
    from baton_serve.router.pool import Reservation, Worker
    from bench.scale.cluster.request import Request


class SecondLeg(Places):
    """Of the requests of one router."""

    def decode(self, request: Request, source: Worker) -> None:
        """Have the request decoded as soon as a D has room, or by the D that was chosen with P."""
        if request.chosen is not None:
            request.reservation, request.chosen = request.chosen, None
            request.leg += 1
            self._ask_d(request, request.reservation.worker)
            return
        about = Prefilled(request.prompt, source, request.num_tokens)
        group = (MODEL, source.layout_of(MODEL), None, request.attempts.tried_decode)
        pick = partial(self.pick_d, request, about, group)
        self.wait(request, self.decides.queues.held, pick, group, about.need, self._ask_d)

    def pick_d(self, request: Request, about: Prefilled, group: Hashable, ahead: Ahead) -> Reservation | None:
        """A place on a D, by the rules and the policy of the real router; see ``router.queue.worker_queue.Pick``."""
        decides = self.decides
        route = decides.pool.candidates(MODEL)
        if route is None or about.source is None:
            return None
        tried, need = request.attempts.tried_decode, about.need
        readers = route.readers(about.source)
        worker = choose(decides.pick_decode, readers, tried, need.fits, ahead, group, about)
        return None if worker is None else decides.pool.enter(worker, need.blocks_on(worker))

    def _ask_d(self, request: Request, worker: Worker) -> None:
        engine = self.machines.get(worker.engine_id)
        if engine is None or not engine.is_alive:
            self.failed(request, Leg.DECODE, Failure.NOT_TAKEN, worker)
            return
        engine.submit(request, self)

    def reads(self, request: Request, num_tokens: int) -> None:
        """See ``Asker``."""
        self.outcome.num_found_by_d += request.num_tokens - num_tokens

    def has_read(self, request: Request) -> bool:
        """See ``Asker``."""
        source = request.source
        assert source is not None and request.reservation is not None
        if request.lease_id not in source.leased:
            self.failed(request, Leg.DECODE, Failure.READ_FAILED, request.reservation.worker)
            return False
        self.leases.read(self.name, source, request.lease_id)
        self.decides.lease_limit.end(request.lease_id)
        request.lease_id, request.source = "", None
        return True

    def first_byte(self, request: Request, leg: int) -> None:
        """See ``Asker``."""
        if request.leg != leg or request.end is not None:
            return
        request.computed = 0
        request.attempts.continued()
        if request.second_s < 0:
            request.second_s = self.loop.now_s

    def finished(self, request: Request) -> None:
        """See ``Asker``."""
        assert request.reservation is not None
        self.first_byte(request, request.leg)
        self.decides.pool.worked(request.reservation.worker)
        self.end(request, End.DONE)
