"""The first leg: find a P with room, have it prefill, take over its blocks; see ``router.steps.prefill``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from baton_serve.router.placement import Need, Prefilled, choose, in_question
from baton_serve.router.request.failure_table import Failure, Leg
from bench.scale.cluster.request import End
from bench.scale.cluster.router.second_leg import SecondLeg
from bench.scale.load.job import MODEL

if TYPE_CHECKING:
    from collections.abc import Hashable

    from baton_serve.router.placement import Ahead
    from baton_serve.router.pool import Reservation, Route, Worker
    from bench.scale.cluster.kept import KeptBlocks
    from bench.scale.cluster.request import Request


class FirstLeg(SecondLeg):
    """Of the requests of one router."""

    def prefill(self, request: Request) -> None:
        """Have the request prefilled as soon as a P has room."""
        need = Need(request.num_tokens, exact=True)
        group = (MODEL, None, request.attempts.failed_prefill)
        pick = partial(self.pick_p, request, need, group)
        self.wait(request, self.decides.queues.prefill, pick, group, need, self._ask_p)

    def pick_p(self, request: Request, need: Need, group: Hashable, ahead: Ahead) -> Reservation | None:
        """A place on a P, by the rules and the policy of the real router; see ``router.queue.worker_queue.Pick``."""
        decides = self.decides
        route = decides.pool.candidates(MODEL)
        if route is None or not route.can_prefill or (self.chooses_early and not route.can_decode):
            return None
        limit = decides.lease_limit

        def fits(worker: Worker) -> bool:
            return limit.allows(worker) and need.fits(worker, limit.since_report(worker))

        failed = request.attempts.failed_prefill
        worker = choose(decides.pick_prefill, route.prefill, failed, fits, ahead, group, request.prompt)
        if worker is None:
            return None
        if self.chooses_early:
            self._choose_d(request, route)
        return decides.pool.enter(worker, need.blocks_on(worker))

    def _choose_d(self, request: Request, route: Route) -> None:
        readers = in_question(route.decode, request.attempts.failed_decode)
        about = Prefilled(request.prompt, None, request.num_tokens)
        chosen = self.decides.pick_decode.pick(readers, about)
        request.chosen = self.decides.pool.enter(chosen, about.need.blocks_on(chosen))

    def _ask_p(self, request: Request, worker: Worker) -> None:
        engine = self.machines.get(worker.engine_id)
        if engine is None or not engine.is_alive:
            self.failed(request, Leg.PREFILL, Failure.NOT_TAKEN, worker)
            return
        self.outcome.num_prompt_tokens += request.num_tokens
        engine.submit(request, self)

    def prefilled(self, request: Request, kept: KeptBlocks) -> None:
        """See ``Asker``."""
        request.lease_id = f"{request.number}-{request.leg}"
        self.outcome.num_computed += request.computed
        self.outcome.num_found_by_p += request.num_tokens - request.computed
        kept.keep(request.lease_id, request.num_tokens)
        request.source = kept
        self.leases.grant(kept, request.lease_id)
        self.when_free(request, self._take_over)

    def _take_over(self, request: Request) -> None:
        assert request.source is not None and request.reservation is not None
        worker = request.reservation.worker
        self.decides.pool.worked(worker)
        self.vacate(request)
        request.attempts.prefilled()
        request.num_sent += 1
        if request.first_s < 0:
            request.first_s = self.loop.now_s
        if request.num_left == 0:
            self.end(request, End.DONE)
            return
        self.decides.lease_limit.hold(request.lease_id, worker, request.num_tokens)
        self.leases.track(self.name, request.source, request.lease_id, partial(self.lease_lost, request))
        self.decode(request, worker)
