"""The first leg: find a P with room, have it prefill, take over its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leases.ids import check_id
from protocol.errors import ApiError, UnavailableError, UpstreamError
from protocol.failpoints import hit
from router.aborted import is_aborted, wait_out
from router.attempt import TryAnother, api_error, cause_of, leave_failed, read_whole, wait_for_room
from router.held_back import HeldBack
from router.nobody_left import route_of, somebody, was_served
from router.placement import Direct, in_question, placeable
from router.prefill_answer import PrefillAnswer
from router.request import Event
from router.try_again import able, has_died, may_try_again, was_not_taken
from router.upstream import LegError
from router.worker_errors import from_worker, may_try_another

if TYPE_CHECKING:
    from router.exchange import Exchange
    from router.placement import Ahead
    from router.workers import Place, Route, Worker


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
            route = await route_of(x)
            if any(worker.takes_work for worker in able(x, route.decode)):
                x.services.metrics.direct[Direct.UNREACHABLE] += 1
                return None
            if not was_served(x):
                raise x.last_error or UnavailableError("No prefill worker can be reached.", retry_after_s=1) from None
            await somebody(x)
            continue
        x.on(Event.PREFILL_SENT)
        try:
            answer = await _ask(x, worker)
        except (LegError, TryAnother) as error:
            leave_failed(x, worker, error)
            x.services.metrics.retries["prefill"] += 1
            x.last_error = api_error(error)
            if is_aborted(x.last_error):
                x.on(Event.PREFILL_AGAIN)
                await wait_out(x, x.last_error)
                continue
            x.failed_prefill.add(worker)
            _count(x, x.last_error, worker, error)
            x.on(Event.PREFILL_AGAIN)
            continue
        _take_over(x, worker, answer)
        return answer


def _count(x: Exchange, told: ApiError, worker: Worker, error: LegError | TryAnother) -> None:
    """Note the failure; raises ``told``, or worse, when it was the last attempt."""
    cause = cause_of(error)
    if was_not_taken(cause):
        return
    x.num_prefills += 1
    if x.num_prefills >= x.services.settings.max_prefill_attempts:
        raise told
    may_try_again(x, told, worker if has_died(cause) else None)


async def _find(x: Exchange) -> Worker:
    services = x.services
    route = await route_of(x)
    _check_reachable(x, route)
    group = (x.ask.model, x.seen.begun and x.seen.weights, frozenset(x.failed_prefill))
    need = x.prompt.need
    need.check(route.prefill, x.ask.prompt_param)
    if x.ask.max_new_tokens != 1:
        need.check(route.decode, x.ask.prompt_param)

    held_back = HeldBack(services.metrics)

    def fits(worker: Worker) -> bool:
        return services.leased.allows(worker) and need.fits(worker, services.leased.since_report(worker))

    def pick(ahead: Ahead) -> Place | None:
        try:
            route = services.pool.route(x.ask.model)
        except ApiError:  # all of them left while this request waited; new ones may come
            return None
        _check_reachable(x, route)
        asked = in_question(able(x, route.prefill), x.failed_prefill)
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


def _check_reachable(x: Exchange, route: Route) -> None:
    if not any(worker.takes_work for worker in able(x, route.prefill)):
        raise NoPrefill


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
    data = await read_whole(x, answer, timeout_s)
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
    x.num_prefills += 1
    x.seen.come_from(worker.weights_fingerprint)
    x.engine_id = answer.summary.remote_engine_id
    x.lease_id = answer.summary.lease_id
    if answer.is_whole(x.ask):  # nothing is held; a lease that came all the same goes at the exit
        return
    x.on(Event.PREFILLED)
    if x.lease_id:
        x.services.leased.hold(x.lease_id, worker, answer.summary.remote_num_tokens)
        x.services.leases.track(x.engine_id, x.lease_id, x.lease_over)
