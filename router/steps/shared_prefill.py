"""The first leg of one of several choices: the first one has P prefill for all, the others take over its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.router.request.choices.shared_prefill import LEAD
from baton_serve.router.request.states import Event
from baton_serve.router.steps.prefill import prefill

if TYPE_CHECKING:
    from baton_serve.router.engines.prefill_answer import PrefillAnswer
    from baton_serve.router.request.exchange import Exchange
    from baton_serve.router.services import Services
    from baton_serve.router.steps.shared_answer import SharedAnswer


async def prefill_shared(services: Services, request: Exchange) -> PrefillAnswer | None:
    """As ``prefill``; a choice that shares a prompt with others and has no token yet takes what is shared, once."""
    role = request.choice
    if role is None or role.shared is None or role.reader is not None or request.sent_tokens.begun:
        return await prefill(services, request)
    role.reader = role.shared.join()
    if role.reader == LEAD:
        try:
            return await prefill(services, request)
        finally:
            role.leave()
    offer: SharedAnswer | None = await role.shared.offer()
    answer = None if offer is None else _taken_over(services, request, offer, role.reader)
    role.leave()
    return await prefill(services, request) if answer is None else answer


def _taken_over(services: Services, request: Exchange, offer: SharedAnswer, reader: int) -> PrefillAnswer | None:
    """Hold the blocks of P's answer to another choice: the request is then HELD. None if there is nothing to hold."""
    answer = services.engines.of(offer.worker).for_reader(offer.answer, reader)
    lease = None if answer is None else offer.lease.share(request.lease_over)
    if answer is None or lease is None:
        return None
    request.on(Event.PREFILL_SENT)
    request.prefill_worker = offer.worker
    request.on(Event.PREFILLED)
    request.attempts.prefilled()
    request.tokens_come_from(offer.worker)
    request.engine_id = answer.summary.remote_engine_id
    request.lease = lease
    return answer
