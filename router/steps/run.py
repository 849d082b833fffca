"""The life of one request: P, first token, held, D, relay. Every request ends in ``exit.settle``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.core.protocol.errors import UpstreamError
from baton_serve.router.placement import Prefilled
from baton_serve.router.request.attempts import Attempts
from baton_serve.router.request.exchange import Exchange
from baton_serve.router.request.sent_tokens import SentTokens
from baton_serve.router.steps.decode import decode
from baton_serve.router.steps.first_token import send_first_token
from baton_serve.router.steps.relay import relay
from baton_serve.router.steps.shared_prefill import prefill_shared
from baton_serve.router.steps.waiting import candidates

if TYPE_CHECKING:
    from baton_serve.router.placement import Prompt
    from baton_serve.router.pool import Route
    from baton_serve.router.request.bodies import ClientBody
    from baton_serve.router.request.client_request import ClientRequest
    from baton_serve.router.request.reply import Reply
    from baton_serve.router.services import Services


def new_request(
    services: Services,
    request_id: str,
    asked: ClientRequest,
    body: ClientBody,
    reply: Reply,
    num_bytes: int,
    prompt: Prompt | None = None,
) -> Exchange:
    """The record of an admitted request. ``num_bytes``: size of the client's body, which is kept until the end.

    ``prompt``: that of another choice with the same one.
    """
    sent_tokens = _sent_tokens(services, asked, body)
    attempts = Attempts(services.limits, services.retry_budget)
    number = services.active.next_number()
    releaser = services.releaser
    clock = services.clock
    return Exchange(request_id, number, asked, body, reply, num_bytes, sent_tokens, attempts, releaser, clock, prompt)


def _sent_tokens(services: Services, asked: ClientRequest, body: ClientBody) -> SentTokens:
    """What notes the tokens of the answer: vLLM's servers name them in another way than Baton's workers."""
    route = services.pool.candidates(asked.model) if asked.stream else None
    max_event_bytes = services.settings.max_event_bytes
    if route is None or route.kind is None:  # of workers of several kinds, only Baton's name tokens
        return SentTokens(max_event_bytes)
    return services.engines.of_kind(route.kind).sent_tokens(body, max_event_bytes)


async def run(services: Services, request: Exchange) -> None:
    """Run the request until the client has everything. Raises ApiError. The caller settles it in any case."""
    services.retry_budget.request(request.clock())
    while True:
        request.lease_end = None
        route = await _candidates(services, request)
        prefilled = None
        if request.asked.splits and not (
            request.goes_whole or route.single or _is_last_token(request) or _skips_prefill(services, request, route)
        ):
            prefilled = await prefill_shared(services, request)
        elif request.choice is not None:
            request.choice.leave()
        if prefilled is None:
            request.attempts.prefilled()
        elif await send_first_token(services, request, prefilled):
            return
        else:
            prefilled.forget_answer()
        first = await decode(services, request, prefilled)
        prefilled = None  # frees the block ids of a long prompt, which would stay in memory during the stream
        request.body.forget_encoded()
        if first is not None and await relay(services, request, first):
            return


def _skips_prefill(services: Services, request: Exchange, route: Route) -> bool:
    """Reserve a place on a D if the request may skip P: not while others wait for a D, and not after a failure."""
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


def _is_last_token(request: Exchange) -> bool:
    """Whether a migrated stream needs only one more token: one worker computes it, and nothing is handed over."""
    return request.sent_tokens.begun and len(request.sent_tokens.ids() or ()) + 1 == request.asked.max_new_tokens


async def _candidates(services: Services, request: Exchange) -> Route:
    """The workers that may serve the request.

    If none can continue after the request's tokens, and the client has been sent none of them, the answer starts
    again from the first token.

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
