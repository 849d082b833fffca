"""The first leg: find a P with room, have it prefill, take over its blocks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from core.leases.ids import check_id
from core.process.failpoints import hit
from core.protocol.errors import UnavailableError, UpstreamError
from router.placement import Direct, in_question, placeable
from router.request.states import Event
from router.steps.failures import TryAnother
from router.steps.held_back import HeldBack
from router.steps.prefill_answer import PrefillAnswer
from router.steps.retry import after_prefill
from router.steps.waiting import candidates, wait_for_room, wait_for_workers, was_served
from router.upstream.port import LegError, read_whole
from router.upstream.worker_errors import from_worker, may_try_another

if TYPE_CHECKING:
    from router.placement import Ahead
    from router.pool import Place, Worker
    from router.request.exchange import Exchange


class NoPrefill(Exception):
    """No P can be reached; whoever decodes can prefill as well."""


async def prefill(x: Exchange) -> PrefillAnswer | None:
    """Until some P has answered; the request is then HELD, its lease renewed, unless P's answer is all of it.

    None: no P can be reached; the request is QUEUED. Raises ApiError.
    """
    while True:
        try:
            worker = await _find(x)
        except NoPrefill:
            if (await candidates(x)).can_decode:
                x.services.metrics.direct[Direct.UNREACHABLE] += 1
                return None
            if not was_served(x):
                raise x.attempts.last_error or UnavailableError(
                    "No prefill worker can be reached.", retry_after_s=1
                ) from None
            await wait_for_workers(x)
            continue
        x.on(Event.PREFILL_SENT)
        try:
            answer = await _ask(x, worker)
        except (LegError, TryAnother) as error:
            decision = after_prefill(x, worker, error)
            x.on(Event.PREFILL_AGAIN)
            await asyncio.sleep(decision.wait_s)
            continue
        _take_over(x, worker, answer)
        return answer


async def _find(x: Exchange) -> Worker:
    services = x.services
    route = await candidates(x)
    if not route.can_prefill:
        raise NoPrefill
    failed = x.attempts.failed_prefill
    group = (x.ask.model, x.weights, frozenset(failed))
    need = x.prompt.need
    need.check(route.prefill, x.ask.prompt_param)
    if x.ask.max_new_tokens != 1:
        need.check(route.decode, x.ask.prompt_param)

    held_back = HeldBack(services.metrics)

    def fits(worker: Worker) -> bool:
        return services.leased.allows(worker) and need.fits(worker, services.leased.since_report(worker))

    def pick(ahead: Ahead) -> Place | None:
        route = services.pool.candidates(x.ask.model)
        if route is None:  # all of them left while this request waited; new ones may come
            return None
        route = services.pool.candidates(x.ask.model, x.weights)
        if route is None or not route.can_prefill:
            raise NoPrefill
        asked = in_question(route.prefill, failed)
        workers = placeable(asked, fits, ahead, group)
        if not workers:
            if any(worker.room > 0 and not services.leased.allows(worker) for worker in asked):
                held_back.begin()
            return None
        worker = services.pick_prefill.pick(workers, x.prompt)
        return services.pool.enter(worker, need.blocks_on(worker))

    try:
        worker = await wait_for_room(x, services.prefill_queue, pick, group, need)
    finally:
        held_back.end()
    x.prefill_worker = worker
    return worker


async def _ask(x: Exchange, worker: Worker) -> PrefillAnswer:
    services = x.services
    timeout_s = services.settings.prefill_timeout_s
    # One token in all needs no D. Our own workers then keep no blocks; what others do is not known.
    ours = bool(worker.compatibility_hash)
    hand_off = not (ours and x.ask.max_new_tokens == 1)
    body = x.bodies.prefill(hand_off=hand_off, ours=ours, resume=x.seen.resume() if x.seen.begun else None)
    if ours and hand_off and worker.internal_url:
        x.unread_prefill = worker
    answer = x.answer = await services.upstream.request(
        "POST", worker.url, x.ask.path, (("x-request-id", x.request_id), *services.headers_for(worker)), body, timeout_s
    )
    data = await read_whole(answer, services.settings.max_answer_bytes, timeout_s)
    if answer.status != 200:
        x.unread_prefill = None
        error = from_worker(answer.status, data, answer.retry_after)
        raise TryAnother(error) if may_try_another(error) else error
    try:
        prefilled = PrefillAnswer(data, hand_off=hand_off, ours=ours)
        if prefilled.summary.lease_id:
            _check_lease(x, prefilled.summary.remote_engine_id, prefilled.summary.lease_id)
    except ValueError:
        raise TryAnother(UpstreamError("A prefill worker's answer was not understood.")) from None
    x.unread_prefill = None
    return prefilled


def _check_lease(x: Exchange, engine_id: str, lease_id: str) -> None:
    """Raises ValueError for one that cannot be ours to keep, or is another request's, which would lose it with us."""
    check_id(lease_id)
    check_id(engine_id)
    if x.services.leases.tracks(engine_id, lease_id) or x.services.leased.holds(lease_id):
        raise ValueError("another request has that lease")


def _take_over(x: Exchange, worker: Worker, answer: PrefillAnswer) -> None:
    """P has done its part: its place is free, its blocks are ours to look after."""
    hit("router.prefill.answered")
    x.services.pool.worked(worker)
    x.vacate()
    x.attempts.prefilled()
    x.seen.come_from(worker.weights_fingerprint)
    x.engine_id = answer.summary.remote_engine_id
    x.lease_id = answer.summary.lease_id
    if answer.is_whole(x.ask):  # nothing is held; a lease that came all the same goes at the exit
        return
    x.on(Event.PREFILLED)
    if x.lease_id:
        x.services.leased.hold(x.lease_id, worker, answer.summary.remote_num_tokens)
        x.services.leases.track(x.engine_id, x.lease_id, x.lease_over)
