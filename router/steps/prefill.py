"""The first leg: find a P with room, have it prefill, take over its blocks."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from baton_serve.core.net.client.errors import CallError
from baton_serve.core.process.failpoints import hit
from baton_serve.core.process.tracebacks import forget_frames
from baton_serve.core.protocol.errors import UnavailableError, UpstreamError
from baton_serve.router.placement import SkipPrefill, choose, with_room
from baton_serve.router.request.choices.shared_lease import SharedLease
from baton_serve.router.request.states import Event
from baton_serve.router.steps.failures import TryAnother
from baton_serve.router.steps.lease_limit_wait import LeaseLimitWait
from baton_serve.router.steps.retry import after_prefill
from baton_serve.router.steps.shared_answer import SharedAnswer
from baton_serve.router.steps.waiting import candidates, wait_for_room, wait_for_workers, was_served
from baton_serve.router.upstream.port import read_whole
from baton_serve.router.upstream.worker_errors import from_worker, may_try_another

if TYPE_CHECKING:
    from baton_serve.core.leases.store import LeaseState
    from baton_serve.router.engines.prefill_answer import PrefillAnswer
    from baton_serve.router.placement import Ahead
    from baton_serve.router.pool import Reservation, Worker
    from baton_serve.router.renewal.port import HeldLease
    from baton_serve.router.request.exchange import Exchange
    from baton_serve.router.services import Services


class NoPrefill(Exception):
    """No P can be reached. A decode worker can prefill as well."""


async def prefill(services: Services, request: Exchange) -> PrefillAnswer | None:
    """Have a P prefill, and return its answer. The request is then HELD, its lease renewed, unless the answer is whole.

    Returns None if no P can be reached, or if what P has handed over cannot be read; the request is then QUEUED for a
    worker that also prefills. Raises ApiError.
    """
    while True:
        worker: Worker | None
        try:
            worker = await _find(services, request)
        except NoPrefill as no_prefill:
            forget_frames(no_prefill)
            worker = None
        if worker is None:
            if (await candidates(services, request)).can_decode:
                services.metrics.skipped_prefill[SkipPrefill.UNREACHABLE] += 1
                return None
            if not was_served(request):
                raise request.attempts.last_error or UnavailableError(
                    "No prefill worker can be reached.", retry_after_s=1
                )
            await wait_for_workers(services, request)
            continue
        request.on(Event.PREFILL_SENT)
        try:
            answer = await _ask(services, request, worker)
        except (CallError, TryAnother) as error:
            decision = after_prefill(services, request, worker, error)
            request.on(Event.PREFILL_AGAIN)
        else:
            _take_over(services, request, worker, answer)
            if answer.is_readable:
                return answer
            worker.num_unreadable += 1
            request.goes_whole = True
            request.drop_lease()
            request.on(Event.PREFILL_AGAIN)
            return None
        await asyncio.sleep(decision.wait_s)


async def _find(services: Services, request: Exchange) -> Worker:
    route = await candidates(services, request)
    if not route.can_prefill:
        raise NoPrefill
    search = _Search(services, request)
    search.need.check(route.prefill, request.asked.prompt_param)
    if request.asked.max_new_tokens != 1:
        search.need.check(route.decode, request.asked.prompt_param)
    try:
        worker = await wait_for_room(services, request, services.prefill_queue, search.pick, search.group, search.need)
    finally:
        search.lease_limit_wait.end()
    request.prefill_worker = worker
    return worker


class _Search:
    """Looks for a P with room, whenever there is some.

    An object, not functions inside of ``_find``: docs/hot-path.md says why they would keep the request, compiled.
    """

    __slots__ = ("_failed", "_request", "_services", "group", "lease_limit_wait", "need")

    def __init__(self, services: Services, request: Exchange) -> None:
        self._services = services
        self._request = request
        self._failed = request.attempts.failed_prefill
        self.group = (request.asked.model, request.weights, self._failed)
        self.need = request.prompt.need
        self.lease_limit_wait = LeaseLimitWait(services.metrics)

    def pick(self, ahead: Ahead) -> Reservation | None:
        """Reserve a place on the best P that has one. Raises NoPrefill."""
        services, request = self._services, self._request
        model = request.asked.model
        route = services.pool.candidates(model, request.weights)
        if route is None and services.pool.candidates(model) is None:
            return None  # all workers of the model left while this request waited; others may register
        if route is None or not route.can_prefill:
            raise NoPrefill
        worker = choose(
            services.pick_prefill, route.prefill, self._failed, self._fits, ahead, self.group, request.prompt
        )
        if worker is None:
            if any(not services.lease_limit.allows(worker) for worker in with_room(route.prefill, self._failed)):
                self.lease_limit_wait.begin()
            return None
        return services.pool.enter(worker, self.need.blocks_on(worker))

    def _fits(self, worker: Worker) -> bool:
        lease_limit = self._services.lease_limit
        return lease_limit.allows(worker) and self.need.fits(worker, lease_limit.since_report(worker))


async def _ask(services: Services, request: Exchange, worker: Worker) -> PrefillAnswer:
    timeout_s = services.settings.prefill_timeout_s
    engine = services.engines.of(worker)
    hand_off = engine.hands_off(request.asked)
    leg = engine.prefill_leg(request, hand_off=hand_off)
    if hand_off and worker.internal_url:
        request.unread_prefill = worker
    answer = request.answer = await services.upstream.request(
        "POST",
        worker.url,
        request.asked.path,
        (*request.headers(), *services.headers_for(worker)),
        leg.body,
        timeout_s,
    )
    data = await read_whole(answer, services.settings.max_answer_bytes, timeout_s)
    if answer.status != 200:
        request.unread_prefill = None
        error = from_worker(answer.status, data, answer.retry_after, as_sent=request.asked.passed_on)
        raise TryAnother(error) if may_try_another(error) else error
    try:
        prefilled = engine.prefill_answer(data, leg)
    except ValueError:
        raise TryAnother(UpstreamError("A prefill worker's answer was not understood.")) from None
    request.unread_prefill = None
    return prefilled


def _take_over(services: Services, request: Exchange, worker: Worker, answer: PrefillAnswer) -> None:
    """After P's answer: release the place on P, and renew its lease from now on."""
    hit("router.prefill.answered")
    services.pool.worked(worker)
    request.vacate()
    request.attempts.prefilled()
    request.tokens_come_from(worker)
    request.engine_id = answer.summary.remote_engine_id
    engine = services.engines.of(worker)
    is_whole = answer.is_whole(request.asked)
    if not is_whole:
        request.on(Event.PREFILLED)
    if request.num_readers > 1 and engine.for_reader(answer, 1) is not None:
        _share(services, request, worker, answer, reads=not is_whole)
    elif is_whole:  # no D is needed; if P granted a lease anyway, it is released at the exit
        request.lease = engine.hold(answer, None)
    else:
        request.lease = engine.hold(answer, request.lease_over)
        _count(services, request.lease, worker, answer)
    if worker.internal_url and not services.pool.knows(worker):  # it went missing meanwhile
        services.missing_engines.ask(worker)


def _share(services: Services, request: Exchange, worker: Worker, answer: PrefillAnswer, *, reads: bool) -> None:
    """Hold the lease for all choices of the prompt, and let them read. ``reads``: this one does as well.

    It is held until each of the others has taken a share or has left, and then until those with a share are done.
    """
    shared = SharedLease()
    shared.lease = services.engines.of(worker).hold(answer, shared.over)
    _count(services, shared.lease, worker, answer)
    kept = shared.share(_ignore)
    assert kept is not None, "a lease that has just begun is not over"
    if reads:
        request.lease = shared.share(request.lease_over)
    assert request.choice is not None and request.choice.shared is not None, "only choices have several readers"
    request.choice.shared.settle(SharedAnswer(answer, worker, shared), partial(request.give_up, kept))


def _ignore(_end: LeaseState) -> None:
    """A lease that is only kept for other choices: its end wakes no request."""


def _count(services: Services, lease: HeldLease | None, worker: Worker, answer: PrefillAnswer) -> None:
    if lease is not None:
        services.lease_limit.hold(lease.lease_id, worker, answer.summary.remote_num_tokens)
