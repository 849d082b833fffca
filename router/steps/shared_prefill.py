"""The first leg of one of several choices: the first one has P prefill for all, the others take over its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.request.choices.shared_prefill import LEAD
from router.request.states import Event
from router.steps.prefill import prefill

if TYPE_CHECKING:
    from router.engines.prefill_answer import PrefillAnswer
    from router.request.choices.shared_prefill import SharedPrefill
    from router.request.exchange import Exchange
    from router.services import Services
    from router.steps.prefill import Offer


async def prefill_shared(services: Services, request: Exchange) -> PrefillAnswer | None:
    """As ``prefill``; a choice that shares a prompt with others and has no token yet takes what is shared, once."""
    role = request.choice
    if role is None or role.shared is None or role.reader is not None or request.sent_tokens.begun:
        return await prefill(services, request)
    role.reader = role.shared.join()
    if role.reader == LEAD:
        return await _lead(services, request, role.shared)
    offer: Offer | None = await role.shared.offer()
    answer = None if offer is None else services.engines.of(offer.worker).for_reader(offer.answer, role.reader)
    if offer is None or answer is None:
        return await prefill(services, request)
    _take_over(request, offer, answer)
    return answer


async def _lead(services: Services, request: Exchange, shared: SharedPrefill[Offer]) -> PrefillAnswer | None:
    """Prefill for all. If that leaves nothing to read, the others learn it too."""
    try:
        return await prefill(services, request)
    finally:
        shared.settle(None)


def _take_over(request: Exchange, offer: Offer, answer: PrefillAnswer) -> None:
    """Hold the blocks of P's answer to another choice. The request is then HELD."""
    request.on(Event.PREFILL_SENT)
    request.prefill_worker = offer.worker
    request.on(Event.PREFILLED)
    request.attempts.prefilled()
    request.tokens_come_from(offer.worker)
    request.engine_id = answer.summary.remote_engine_id
    request.lease = offer.lease.share(request.lease_over)
