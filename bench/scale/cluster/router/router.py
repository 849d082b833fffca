"""A simulated router: the steps of a request, each decided by the real router's code (``decisions``); and what follows
when a leg fails or a lease is lost, by the table of failures, as in ``router.steps.judge``.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

from baton_serve.core.protocol.errors import ApiError, UpstreamError
from baton_serve.router.placement import Ahead, Need, Prefilled, choose, in_question
from baton_serve.router.pool import Reservation, Route, Worker
from baton_serve.router.request.attempts import Situation
from baton_serve.router.request.failure_table import Failure, Leg, Next
from bench.scale.cluster.kept import KeptBlocks
from bench.scale.cluster.request import End, Request
from bench.scale.cluster.router.places import Places
from bench.scale.load.job import MODEL, Job


class SimulatedRouter(Places):
    """One router, which is an ``Asker``."""

    def __post_init__(self) -> None:
        self.decides.pool.on_gone.append(self.engine_gone)

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
            admission.make_room(route, 0, request.job.num_tokens * 4)
        except ApiError:
            self.end(request, End.REFUSED)
            return
        self.prefill(request)

    # The first leg: find a P with room, have it prefill, take over its blocks; see ``router.steps.prefill``.

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
        if self._ask(request, Leg.PREFILL, worker):
            self.outcome.num_prompt_tokens += request.num_tokens

    def _ask(self, request: Request, leg: Leg, worker: Worker) -> bool:
        """Returns whether the engine has taken the request."""
        engine = self.machines.get(worker.engine_id)
        if engine is None or not engine.is_alive:
            self.failed(request, leg, Failure.NOT_TAKEN, worker)
            return False
        engine.submit(request, self)
        return True

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

    # The second leg: find a D with room, have it read P's blocks and decode; see ``router.steps.decode``.

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
        self._ask(request, Leg.DECODE, worker)

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

    # What fails.

    def lost(self, request: Request, leg: int, died: str) -> None:
        """See ``Asker``."""
        reservation = request.reservation
        if not self.is_alive or request.leg != leg or request.end is not None or reservation is None:
            return
        if reservation.worker.engine_id == died:
            self.failed(request, _leg_of(request, reservation.worker), Failure.DIED, reservation.worker)

    def failed(self, request: Request, leg: Leg, failure: Failure, worker: Worker) -> None:
        """A leg failed on a worker: release the place, judge the worker, and do what the table of failures says."""
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
        """P has given up the blocks of a request that waits for a D; the request may be further by now."""
        if request.lease_id == lease_id and request.end is None:
            self.vacate(request)
            self._decide(request, Situation(Leg.HELD, Failure.LEASE_LOST, UpstreamError("The lease is lost.")))

    def engine_gone(self, engine_id: str) -> None:
        """An engine left the registry's list, and all its blocks are lost: none of these is only late."""
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
