"""A simulated router: the steps of a request, each decided by the real router's code (``decisions``)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from bench.scale.cluster.cpu import Cpu
from bench.scale.cluster.request import End, Request
from bench.scale.load.job import MODEL
from core.protocol.errors import ApiError, UnavailableError, UpstreamError
from router.placement import Ahead, Need, Prefilled, in_question, placeable
from router.placement.ports import key_of
from router.request.attempts import Situation
from router.request.failure_table import Failure, Leg, Next
from router.steps.admission import check_requests, make_room

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable, Mapping

    from bench.scale.clock import SimulatedLoop
    from bench.scale.cluster.decisions import Decisions
    from bench.scale.cluster.decode import DecodeEngine
    from bench.scale.cluster.leases import Leases
    from bench.scale.cluster.outcome import Outcome
    from bench.scale.cluster.prefill import PrefillEngine
    from bench.scale.costs import Costs
    from bench.scale.load.job import Job
    from router.pool import Reservation, Worker
    from router.queue.worker_queue import Pick, WorkerQueue
    from router.services import Services


class SimulatedRouter:
    """One router. ``chooses_early``: D is chosen when P is, and the blocks are made for that D alone."""

    def __init__(
        self,
        name: str,
        loop: SimulatedLoop,
        decides: Decisions,
        leases: Leases,
        machines: Mapping[str, PrefillEngine | DecodeEngine],
        costs: Costs,
        outcome: Outcome,
        *,
        chooses_early: bool = False,
    ) -> None:
        self.name = name
        self.is_alive = True
        self.cpu = Cpu()
        self.decides = decides
        self._loop = loop
        self._leases = leases
        self._machines = machines
        self._costs = costs
        self._outcome = outcome
        self._chooses_early = chooses_early
        self._number = 0
        decides.pool.on_gone.append(self._engine_gone)

    def __repr__(self) -> str:
        return f"<SimulatedRouter {self.name} {len(self.decides.active)} requests>"

    # A request comes.

    def come(self, job: Job, number: int) -> None:
        """Take a new request; it is let in when the router gets to it."""
        self._outcome.came()
        request = self.new_request(job, number)
        self.decides.active[number] = request
        self._when_free(request, self._let_in)

    def new_request(self, job: Job, number: int) -> Request:
        """The record of a request that has come."""
        return Request(number, job, self.decides.attempts(self._loop.now_s))

    def die(self) -> None:
        """End the router: its clients see their connections break."""
        self.is_alive = False
        for request in [*self.decides.active.values()]:
            self._end(request, End.ROUTER_DIED)
        self._leases.router_died(self.name)

    def _let_in(self, request: Request) -> None:
        services = cast("Services", self.decides)
        try:
            check_requests(services, -1)  # this one is active already
            make_room(services, MODEL, request.job.priority, request.job.num_tokens * 4)
        except ApiError:
            self._end(request, End.REFUSED)
            return
        self._find_p(request)

    # The first leg.

    def _find_p(self, request: Request) -> None:
        need = Need(request.num_tokens, exact=True)
        group = (MODEL, None, request.attempts.failed_prefill)
        pick = partial(self.pick_p, request, need, group)
        self._wait(request, self.decides.prefill_queue, pick, group, need, self._ask_p)

    def pick_p(self, request: Request, need: Need, group: Hashable, ahead: Ahead) -> Reservation | None:
        """A place on a P, by the rules and the policy of the real router; see ``router.queue.worker_queue.Pick``."""
        decides = self.decides
        route = decides.pool.candidates(MODEL)
        if route is None or not route.can_prefill:
            return None
        limit = decides.lease_limit

        def fits(worker: Worker) -> bool:
            return limit.allows(worker) and need.fits(worker, limit.since_report(worker))

        asked = in_question(route.prefill, request.attempts.failed_prefill)
        workers = placeable(asked, fits, ahead, group)
        if not workers:
            return None
        if self._chooses_early:
            readers = in_question(route.decode, request.attempts.failed_decode)
            if not readers:
                return None
            about = Prefilled(request.prompt, None, request.num_tokens)
            chosen = decides.pick_decode.pick(readers, about)
            request.chosen = decides.pool.enter(chosen, about.need.blocks_on(chosen))
        worker = decides.pick_prefill.pick(workers, request.prompt)
        return decides.pool.enter(worker, need.blocks_on(worker))

    def _ask_p(self, request: Request, worker: Worker) -> None:
        engine = self._machines.get(worker.engine_id)
        if engine is None or not engine.is_alive:
            self.failed(request, Leg.PREFILL, Failure.NOT_TAKEN, worker)
            return
        self._outcome.num_prompt_tokens += request.num_tokens
        engine.submit(request, self)

    def prefilled(self, request: Request, engine: PrefillEngine) -> None:
        """See ``Asker``."""
        request.lease_id = f"{request.number}-{request.leg}"
        self._outcome.num_computed += request.computed
        self._outcome.num_found_by_p += request.num_tokens - request.computed
        engine.keep(request.lease_id, request.num_tokens)
        request.source = engine
        self._leases.grant(engine, request.lease_id)
        self._when_free(request, self._has_prefilled)

    def _has_prefilled(self, request: Request) -> None:
        assert request.source is not None and request.reservation is not None
        decides, worker = self.decides, request.reservation.worker
        decides.pool.worked(worker)
        self._vacate(request)
        request.attempts.prefilled()
        request.num_sent += 1
        if request.first_s < 0:
            request.first_s = self._loop.now_s
        if request.num_left == 0:
            self._end(request, End.DONE)
            return
        decides.lease_limit.hold(request.lease_id, worker, request.num_tokens)
        self._leases.track(self.name, request.source, request.lease_id, partial(self._lease_lost, request))
        self._find_d(request, worker)

    # The second leg.

    def _find_d(self, request: Request, source: Worker) -> None:
        if request.chosen is not None:
            request.reservation, request.chosen = request.chosen, None
            request.leg += 1
            self._ask_d(request, request.reservation.worker)
            return
        about = Prefilled(request.prompt, source, request.num_tokens)
        group = (MODEL, source.layout, None, request.attempts.tried_decode)
        pick = partial(self.pick_d, request, about, group)
        self._wait(request, self.decides.held_queue, pick, group, about.need, self._ask_d)

    def pick_d(self, request: Request, about: Prefilled, group: Hashable, ahead: Ahead) -> Reservation | None:
        """A place on a D, in the same way."""
        pool = self.decides.pool
        route = pool.candidates(MODEL)
        if route is None or about.source is None:
            return None
        asked = in_question(route.readers(about.source), request.attempts.tried_decode)
        need = about.need
        workers = placeable(asked, need.fits, ahead, group)
        if not workers:
            return None
        worker = self.decides.pick_decode.pick(workers, about)
        return pool.enter(worker, need.blocks_on(worker))

    def _ask_d(self, request: Request, worker: Worker) -> None:
        engine = self._machines.get(worker.engine_id)
        if engine is None or not engine.is_alive:
            self.failed(request, Leg.DECODE, Failure.NOT_TAKEN, worker)
            return
        engine.submit(request, self)

    def reads(self, request: Request, num_tokens: int) -> None:
        """See ``Asker``."""
        self._outcome.num_found_by_d += request.num_tokens - num_tokens

    def has_read(self, request: Request) -> bool:
        """See ``Asker``."""
        source = request.source
        assert source is not None and request.reservation is not None
        if request.lease_id not in source.leased:
            self.failed(request, Leg.DECODE, Failure.READ_FAILED, request.reservation.worker)
            return False
        self._leases.read(self.name, source, request.lease_id)
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
            request.second_s = self._loop.now_s

    def finished(self, request: Request) -> None:
        """See ``Asker``."""
        assert request.reservation is not None
        self.first_byte(request, request.leg)
        self.decides.pool.worked(request.reservation.worker)
        self._end(request, End.DONE)

    # What goes wrong.

    def lost(self, request: Request, leg: int, died: str) -> None:
        """The engine ``died`` with a leg of the request, which may be over."""
        reservation = request.reservation
        if request.leg != leg or request.end is not None or reservation is None or not self.is_alive:
            return
        if reservation.worker.engine_id == died:
            self.failed(request, self._leg_of(request, reservation.worker), Failure.DIED, reservation.worker)

    def failed(self, request: Request, leg: Leg, failure: Failure, worker: Worker) -> None:
        """A leg failed on a worker: release the place, judge the worker, and do what the table of failures says."""
        pool = self.decides.pool
        if failure is Failure.NOT_TAKEN:
            pool.unreachable(worker)
        elif failure is not Failure.READ_FAILED:
            pool.failed(worker)
        self._vacate(request)
        has_lease = request.source is not None and request.lease_id in request.source.leased
        self._decide(
            request,
            Situation(
                leg,
                failure,
                UpstreamError("A worker failed."),
                worker,
                engine=key_of(worker),
                num_tokens=request.num_sent,
                can_continue=True,
                has_lease=has_lease and not self._chooses_early,
            ),
        )

    def _leg_of(self, request: Request, worker: Worker) -> Leg:
        if request.source is not None:
            return Leg.DECODE
        return Leg.STREAM if worker.role == "decode" else Leg.PREFILL

    def _lease_lost(self, request: Request, lease_id: str) -> None:
        if request.lease_id == lease_id and request.end is None:
            self._vacate(request)
            self._decide(request, Situation(Leg.HELD, Failure.LEASE_LOST, UpstreamError("The lease is lost.")))

    def _engine_gone(self, engine_id: str) -> None:
        for request in [*self.decides.active.values()]:
            if request.source is not None and request.source.engine_id == engine_id:
                self._lease_lost(request, request.lease_id)

    def _decide(self, request: Request, situation: Situation) -> None:
        request.leg += 1
        decision = request.attempts.after(situation, self._loop.now_s)
        if decision.next is Next.GIVE_UP:
            self._end(request, End.FAILED)
            return
        if decision.next is Next.SAME_BLOCKS and request.source is not None:
            source = self.decides.pool.get(request.source.engine_id)
            if source is not None:
                self._find_d(request, source)
                return
        self._drop_lease(request)
        request.wasted += request.computed
        request.computed = 0
        self._find_p(request)

    # Places, leases and the end.

    def _wait(
        self,
        request: Request,
        queue: WorkerQueue,
        pick: Pick,
        group: Hashable,
        need: Need,
        then: Callable[[Request, Worker], None],
    ) -> None:
        request.leg += 1
        reservation = None if len(queue) else pick(Ahead())
        if reservation is not None:
            request.reservation = reservation
            then(request, reservation.worker)
            return
        waiter = queue.enter(pick, request.job.priority, request.number, group, request.job.num_tokens * 4, need)
        waiter.may_be_refused = lambda: request.first_s < 0
        error = UnavailableError("No worker had room in time.", code="no_room")
        timer = self._loop.call_later(self.decides.settings.held_timeout_s, waiter.fail, error)
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
            self._end(request, End.NO_ROOM if is_no_room else End.DISPLACED)

    def _when_free(self, request: Request, then: Callable[[Request], None]) -> None:
        """Half of a request's work is done when it comes, the other half when P has answered."""
        work_s = self._costs.request_s(len(self.decides.pool)) / 2
        self._loop.at(self.cpu.ends_s(self._loop.now_s, work_s), self._if_live, request, request.leg, then)

    def _if_live(self, request: Request, leg: int, then: Callable[[Request], None]) -> None:
        if request.end is None and request.leg == leg:
            then(request)

    def _vacate(self, request: Request) -> None:
        reservation, request.reservation = request.reservation, None
        if reservation is not None:
            self.decides.pool.leave(reservation)

    def _drop_lease(self, request: Request) -> None:
        if request.source is not None:
            self._leases.release(self.name, request.source, request.lease_id)
            self.decides.lease_limit.end(request.lease_id)
        request.source, request.lease_id = None, ""
        chosen, request.chosen = request.chosen, None
        if chosen is not None:
            self.decides.pool.leave(chosen)

    def _end(self, request: Request, end: End) -> None:
        request.leg += 1
        del self.decides.active[request.number]
        if self.is_alive:
            self._drop_lease(request)
            self._vacate(request)
        if end is not End.DONE:
            request.wasted += request.computed
        self._outcome.ended(request, end, self._loop.now_s)
