"""The first leg: find a P with room, have it prefill, take over its blocks; see ``router.steps.prefill``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from baton_serve.router.placement import Need, Prefilled, choose, in_question
from baton_serve.router.request.failure_table import Failure, Leg
from bench.scale.cluster.request import End
from bench.scale.load.job import MODEL

if TYPE_CHECKING:
    from collections.abc import Hashable

    from baton_serve.router.placement import Ahead
    from baton_serve.router.pool import Reservation, Route, Worker
    from bench.scale.cluster.engines.prefill import PrefillEngine
    from bench.scale.cluster.request import Request
    from bench.scale.cluster.router.parts import Owner, Parts
    from bench.scale.cluster.router.places import Places
    from bench.scale.cluster.router.second_leg import SecondLeg


class FirstLeg:
    """``chooses_early``: D is chosen when P is, and the blocks are made for that D alone."""

    def __init__(
        self, parts: Parts, places: Places, second_leg: SecondLeg, owner: Owner, *, chooses_early: bool
    ) -> None:
        self._parts = parts
        self._places = places
        self._second_leg = second_leg
        self._owner = owner
        self._chooses_early = chooses_early

    def find(self, request: Request) -> None:
        """Have the request prefilled as soon as a P has room."""
        need = Need(request.num_tokens, exact=True)
        group = (MODEL, None, request.attempts.failed_prefill)
        pick = partial(self.pick, request, need, group)
        self._places.wait(request, self._parts.decides.queues.prefill, pick, group, need, self._ask)

    def pick(self, request: Request, need: Need, group: Hashable, ahead: Ahead) -> Reservation | None:
        """A place on a P, by the rules and the policy of the real router; see ``router.queue.worker_queue.Pick``."""
        decides = self._parts.decides
        route = decides.pool.candidates(MODEL)
        if route is None or not route.can_prefill or (self._chooses_early and not route.can_decode):
            return None
        limit = decides.lease_limit

        def fits(worker: Worker) -> bool:
            return limit.allows(worker) and need.fits(worker, limit.since_report(worker))

        failed = request.attempts.failed_prefill
        worker = choose(decides.pick_prefill, route.prefill, failed, fits, ahead, group, request.prompt)
        if worker is None:
            return None
        if self._chooses_early:
            self._choose_d(request, route)
        return decides.pool.enter(worker, need.blocks_on(worker))

    def _choose_d(self, request: Request, route: Route) -> None:
        readers = in_question(route.decode, request.attempts.failed_decode)
        about = Prefilled(request.prompt, None, request.num_tokens)
        chosen = self._parts.decides.pick_decode.pick(readers, about)
        request.chosen = self._parts.decides.pool.enter(chosen, about.need.blocks_on(chosen))

    def _ask(self, request: Request, worker: Worker) -> None:
        engine = self._parts.machines.get(worker.engine_id)
        if engine is None or not engine.is_alive:
            self._owner.failed(request, Leg.PREFILL, Failure.NOT_TAKEN, worker)
            return
        self._parts.outcome.num_prompt_tokens += request.num_tokens
        engine.submit(request, self._owner)

    def prefilled(self, request: Request, engine: PrefillEngine) -> None:
        """See ``Asker``."""
        outcome = self._parts.outcome
        request.lease_id = f"{request.number}-{request.leg}"
        outcome.num_computed += request.computed
        outcome.num_found_by_p += request.num_tokens - request.computed
        engine.keep(request.lease_id, request.num_tokens)
        request.source = engine
        self._parts.leases.grant(engine, request.lease_id)
        self._places.when_free(request, self._take_over)

    def _take_over(self, request: Request) -> None:
        assert request.source is not None and request.reservation is not None
        parts, worker = self._parts, request.reservation.worker
        parts.decides.pool.worked(worker)
        self._places.vacate(request)
        request.attempts.prefilled()
        request.num_sent += 1
        if request.first_s < 0:
            request.first_s = parts.loop.now_s
        if request.num_left == 0:
            self._places.end(request, End.DONE)
            return
        parts.decides.lease_limit.hold(request.lease_id, worker, request.num_tokens)
        parts.leases.track(parts.name, request.source, request.lease_id, partial(self._owner.lease_lost, request))
        self._second_leg.find(request, worker)
