"""The life of one request: P, first token, held, D, relay. Every way out leads through ``exit.settle``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from core.protocol.errors import UpstreamError
from router.placement import Prefilled
from router.request.attempts import Attempts
from router.request.exchange import Exchange
from router.request.sent_tokens import SentTokens
from router.request.states import Event
from router.steps.decode import decode
from router.steps.prefill import prefill
from router.steps.relay import relay
from router.steps.retry import continued
from router.steps.waiting import candidates

if TYPE_CHECKING:
    from router.pool import Route
    from router.request.bodies import LegBodies
    from router.request.client_request import ClientRequest
    from router.request.reply import ClientReply
    from router.services import Services
    from router.steps.prefill_answer import PrefillAnswer


def new_request(
    services: Services, request_id: str, ask: ClientRequest, bodies: LegBodies, reply: ClientReply, num_bytes: int
) -> Exchange:
    """The record of a request that was let in. ``num_bytes``: of the client's body, which stays until the end."""
    sent_tokens = SentTokens(services.settings.max_event_bytes)
    attempts = Attempts(services.limits, services.retry_budget)
    number = services.active.next_number()
    return Exchange(request_id, number, ask, bodies, reply, num_bytes, sent_tokens, attempts, services.releaser)


async def run(services: Services, request: Exchange) -> None:
    """Until the client has everything. Raises ApiError; when cancelled, nothing is settled yet."""
    services.retry_budget.request(asyncio.get_running_loop().time())
    while True:
        request.lease_end = None
        route = await _candidates(services, request)
        prefilled = None
        if not (route.single or _is_last_token(request) or _skips_prefill(services, request, route)):
            prefilled = await prefill(services, request)
        if prefilled is None:
            request.attempts.prefilled()
        elif await _show_first(services, request, prefilled):
            return
        first = await decode(services, request, prefilled)
        prefilled = None  # a long prompt's ids, as long as the stream goes on
        if first is not None and await relay(services, request, first):
            return


def _skips_prefill(services: Services, request: Exchange, route: Route) -> bool:
    """P is skipped: a place on a D is this request's now. Nobody who waits for a D is passed, nor tried twice."""
    rule = services.skip_prefill
    if rule.is_off or request.sent_tokens.begun or request.attempts.num_prefills or len(services.held_queue):
        return False
    found = rule.workers_for(request.prompt, route.decode)
    if found is None:
        return False
    reason, workers = found
    worker = request.decode_worker = services.pick_decode.pick(workers, Prefilled(request.prompt, None, 0))
    request.occupy(services.pool.enter(worker, request.prompt.need.blocks_on(worker)))
    services.metrics.skipped_prefill[reason] += 1
    return True


async def _show_first(services: Services, request: Exchange, prefilled: PrefillAnswer) -> bool:
    """Send the first token; True when it was also the last."""
    whole = prefilled.is_whole(request.asked)
    if not prefilled.has_first_token and not whole:
        return False
    continued(services, request)
    request.num_tokens = request.num_tokens + 1 if request.asked.stream else 1
    if whole:
        await _finish(request, prefilled)
    elif request.asked.stream:
        events = prefilled.first_events(request.asked, begun=request.sent_tokens.begun)
        request.sent_tokens.created = prefilled.created
        if prefilled.kv_transfer_params is not None:
            prefilled.kv_transfer_params = request.sent_tokens.cached_as_first(prefilled.kv_transfer_params)
        request.sent_tokens.add(prefilled.summary.first_token)
        await request.reply.write(events, content=prefilled.shows_text)
    return whole


def _is_last_token(request: Exchange) -> bool:
    """Of a stream that goes on: there would be nothing to hand over."""
    return request.sent_tokens.begun and len(request.sent_tokens.ids() or ()) + 1 == request.asked.max_new_tokens


async def _candidates(services: Services, request: Exchange) -> Route:
    """Who may serve it. Where none could go on after the tokens so far, and the client has none, it begins anew.

    Raises ApiError.
    """
    pool, model = services.pool, request.asked.model
    if request.sent_tokens.begun and (
        request.sent_tokens.ids() is None or pool.candidates(model, request.weights) is None
    ):
        if not request.reply.started and pool.candidates(model) is not None:
            request.reply.forget()
            request.sent_tokens.forget()
            request.num_tokens = 0
        elif request.sent_tokens.ids() is None:
            raise request.attempts.last_error or UpstreamError("Nobody knows which tokens the client has been sent.")
    return await candidates(services, request)


async def _finish(request: Exchange, prefilled: PrefillAnswer) -> None:
    """The first token was the last one."""
    if request.asked.stream:
        events = prefilled.first_events(request.asked, begun=request.sent_tokens.begun)
        await request.reply.write(events + request.sent_tokens.cached_as_first(prefilled.last_events(request.asked)))
        await request.reply.end()
    else:
        await request.reply.whole(200, b"application/json", prefilled.whole_body())
    request.on(Event.FINISHED)
