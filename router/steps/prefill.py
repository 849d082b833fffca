"""The first leg: find a P with room, have it prefill, take over its blocks.

Of several choices of one prompt, the first has P prefill for all, and the others take over its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.process.failpoints import hit
from baton_serve.core.process.tracebacks import forget_frames
from baton_serve.core.protocol.errors import UnavailableError, UpstreamError
from baton_serve.router.engines.prefill_answer import PrefillAnswer
from baton_serve.router.placement import Ahead, SkipPrefill, choose, with_room
from baton_serve.router.pool import Candidates, Reservation, Worker
from baton_serve.router.renewal.port import HeldLease
from baton_serve.router.request.attempts import Decision
from baton_serve.router.request.choices.shared_prefill import LEAD, ChoiceRole, SharedLease
from baton_serve.router.request.exchange import Exchange
from baton_serve.router.request.failure_table import Leg, Next
from baton_serve.router.request.states import Event
from baton_serve.router.steps.attempt import LegAttempt, Legs
from baton_serve.router.steps.failures import TryAnother


class NoPrefill(Exception):
    """No P can be reached. A decode worker can prefill as well."""


@dataclass(frozen=True, slots=True)
class SharedAnswer:
    """P's answer to one choice of a prompt, whose blocks the other choices read too."""

    answer: PrefillAnswer
    worker: Worker
    lease: SharedLease


class PrefillAttempt(LegAttempt["PrefillAnswer"]):
    """Once it has succeeded, the request holds P's blocks, whose lease is renewed, unless the answer is whole."""

    __slots__ = ("_failed", "_group", "_need", "_taken", "_waits_since_s")

    def __init__(self, legs: Legs, request: Exchange) -> None:
        super().__init__(legs, request, Leg.PREFILL, Event.PREFILL_SENT)
        self._failed = request.attempts.failed_prefill
        self._group = (request.asked.model, request.weights, self._failed)
        self._need = request.prompt.need
        #: P's answer to another choice of the prompt, and a share in its lease.
        self._taken: tuple[PrefillAnswer, HeldLease] | None = None
        #: Since when the prompt waits although a worker has room, because that worker's leases exceed the limit.
        self._waits_since_s: float | None = None

    async def find(self) -> bool:
        """Wait for a P with room. False: none can be reached, and a worker that decodes prefills as well."""
        legs, request = self._legs, self.request
        if request.choice is not None and await self._joins_another(request.choice):
            return True
        while True:
            route = request.route() or await legs.waiting.for_route(request)
            try:
                if not route.can_prefill:
                    raise NoPrefill
                await self._wait(route.prefill, route.decode)
            except NoPrefill as no_prefill:
                forget_frames(no_prefill)
            else:
                return True
            route = request.route() or await legs.waiting.for_route(request)
            if route.can_decode:
                legs.metrics.skipped_prefill[SkipPrefill.UNREACHABLE] += 1
                return False
            if not request.was_served:
                unreachable = UnavailableError(
                    "No prefill worker takes requests: none can be reached, or all drain.", retry_after_s=1
                )
                raise request.attempts.last_error or unreachable
            await legs.waiting.for_workers(request)

    async def _wait(self, prefill: Candidates, decode: Candidates) -> None:
        """Raises NoPrefill and ApiError."""
        legs, request = self._legs, self.request
        need = self._need
        need.check(prefill, request.asked.prompt_param)
        if request.asked.max_new_tokens != 1:
            need.check(decode, request.asked.prompt_param)
        try:
            place = await legs.waiting.for_room(request, legs.queues.prefill, self.pick, self._group, need)
        finally:
            if self._waits_since_s is not None:
                legs.metrics.lease_limit_wait_s += request.clock() - self._waits_since_s
                self._waits_since_s = None
        request.prefill_worker = place.worker
        self._found(place.worker)

    def pick(self, ahead: Ahead) -> Reservation | None:
        """Reserve a place on the best P that has one. Raises NoPrefill."""
        legs, request = self._legs, self.request
        route = request.route()
        if route is None and request.route(any_weights=True) is None:
            return None  # all workers of the model left while this request waited; others may register
        if route is None or not route.can_prefill:
            raise NoPrefill
        worker = choose(legs.pick_prefill, route.prefill, self._failed, self._fits, ahead, self._group, request.prompt)
        if worker is not None:
            return legs.pool.enter(worker, self._need.blocks_on(worker))
        if self._waits_since_s is None and not all(
            map(legs.lease_limit.allows, with_room(route.prefill, self._failed))
        ):
            legs.metrics.num_lease_limit_waits += 1
            self._waits_since_s = request.clock()
        return None

    def _fits(self, worker: Worker) -> bool:
        limit = self._legs.lease_limit
        return limit.allows(worker) and self._need.fits(worker, limit.since_report(worker))

    async def ask(self) -> PrefillAnswer | Decision:
        """Have P prefill, and take over its blocks. If no D could read them, one worker is to compute all of it."""
        if self._taken is not None:
            answer, self.request.held.lease = self._taken
            self._note(answer, is_shared=True)
            self._look_for_p()
            return answer
        answer = await self._ask()
        hit("router.prefill.answered")
        legs, worker = self._legs, self.worker
        legs.pool.worked(worker)
        self.request.vacate()
        self._note(answer)
        self._hold(answer)
        self._look_for_p()
        if answer.is_readable:
            return answer
        worker.server.num_unreadable += 1
        self.request.goes_whole = True
        return Decision(Next.PREFILL)

    def _look_for_p(self) -> None:
        """Look whether P, if it went missing meanwhile, still has its blocks."""
        if self.worker.internal_url and not self._legs.pool.knows(self.worker):
            self._legs.missing_engines.ask(self.worker)

    async def _ask(self) -> PrefillAnswer:
        request, worker, engine = self.request, self.worker, self.engine
        timeout_s = self._legs.settings.prefill_timeout_s
        hand_off = engine.hands_off(request.asked)
        leg = engine.prefill_leg(request, hand_off=hand_off)
        if hand_off and worker.internal_url:
            request.held.unread_prefill = worker
        answer = request.held.answer = await self._send((), leg.body, timeout_s)
        data = await self._whole(answer, timeout_s)
        try:
            prefilled = engine.prefill_answer(data, leg)
        except ValueError:
            raise TryAnother(UpstreamError("A prefill worker's answer was not understood.")) from None
        request.held.unread_prefill = None
        return prefilled

    def _note(self, answer: PrefillAnswer, *, is_shared: bool = False) -> None:
        request = self.request
        request.attempts.prefilled(is_shared=is_shared)
        request.tokens_come_from(self.worker)
        request.held.engine_id = answer.summary.remote_engine_id

    def _hold(self, answer: PrefillAnswer) -> None:
        """Hold the lease that P has granted. If no D is needed it is not renewed, and released at the exit."""
        request, engine = self.request, self.engine
        is_whole = answer.is_whole(request.asked)
        if request.num_readers > 1 and engine.for_reader(answer, 1) is not None:
            self._share(answer, reads=not is_whole)
        elif is_whole:
            request.held.lease = engine.hold(answer, None)
        else:
            request.held.lease = engine.hold(answer, request.lease_over)
            self._count(request.held.lease, answer)

    def _count(self, lease: HeldLease | None, answer: PrefillAnswer) -> None:
        if lease is not None:
            self._legs.lease_limit.hold(lease.lease_id, self.worker, answer.summary.remote_num_tokens)

    # --- several choices of one prompt

    def _share(self, answer: PrefillAnswer, *, reads: bool) -> None:
        """Hold the lease for all choices of the prompt, and offer them the blocks. ``reads``: this choice reads too.

        One share is kept until each other choice has taken a share or has left. The lease ends with the last share.
        """
        request, shared = self.request, SharedLease()
        shared.lease = self.engine.hold(answer, shared.over)
        self._count(shared.lease, answer)
        kept = shared.share(_ignore)
        assert kept is not None, "a lease that has just begun is not over"
        if reads:
            request.held.lease = shared.share(request.lease_over)
        assert request.choice is not None and request.choice.shared is not None, "only choices have several readers"
        request.choice.shared.settle(SharedAnswer(answer, self.worker, shared), partial(request.held.give_up, kept))

    async def _joins_another(self, role: ChoiceRole) -> bool:
        """Whether another choice's P has prefilled for this one as well.

        A choice that shares a prompt with others, and has no token yet, waits for that, once; the first one does not.
        """
        if role.shared is None or role.reader is not None or self.request.sent_tokens.begun:
            return False
        role.reader = role.shared.join()
        if role.reader == LEAD:
            return False
        offer: SharedAnswer | None = await role.shared.offer()
        if offer is not None:
            answer = self._legs.engines[offer.worker.kind.name].for_reader(offer.answer, role.reader)
            lease = None if answer is None else offer.lease.share(self.request.lease_over)
            if answer is not None and lease is not None:
                self._taken = answer, lease
                self.request.prefill_worker = offer.worker
                self._found(offer.worker)
        role.leave()
        return self._taken is not None


def _ignore(_end: LeaseState) -> None:
    """A lease that is only kept for other choices: its end wakes no request."""
