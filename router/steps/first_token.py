"""Sends P's token to the client: as the first events of a stream or, if it ends the answer, as the whole answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.router.request.states import Event
from baton_serve.router.steps.retry import continued

if TYPE_CHECKING:
    from baton_serve.router.engines.prefill_answer import PrefillAnswer
    from baton_serve.router.request.exchange import Exchange
    from baton_serve.router.services import Services


async def send_first_token(services: Services, request: Exchange, prefilled: PrefillAnswer) -> bool:
    """Send the client P's token. Returns True if that was the whole answer; the request is then DONE."""
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
        await request.reply.write(events, content=prefilled.shows(request.asked))
    return whole


async def _finish(request: Exchange, prefilled: PrefillAnswer) -> None:
    """Send an answer whose first token is also its last."""
    if request.asked.stream:
        events = prefilled.first_events(request.asked, begun=request.sent_tokens.begun)
        await request.reply.write(events + request.sent_tokens.cached_as_first(prefilled.last_events(request.asked)))
        await request.reply.end()
    else:
        await request.reply.whole(200, b"application/json", prefilled.whole_body())
    request.on(Event.FINISHED)
