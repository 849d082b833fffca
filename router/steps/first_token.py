"""Sends P's token to the client: as the first events of a stream or, if it ends the answer, as the whole answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton_serve.router.engines.prefill_answer import PrefillAnswer
    from baton_serve.router.request.exchange import Exchange


async def send_first_token(request: Exchange, prefilled: PrefillAnswer) -> bool:
    """Send the client P's token, if P has told it. Returns True if that was the whole answer."""
    asked, reply, sent = request.asked, request.reply, request.sent_tokens
    is_whole = prefilled.is_whole(asked)
    if not (is_whole or prefilled.has_first_token):
        return False
    request.progress.num_tokens = request.progress.num_tokens + 1 if asked.stream else 1
    if not asked.stream:
        if is_whole:
            await reply.whole(200, b"application/json", prefilled.whole_body())
        return is_whole
    events = prefilled.first_events(asked, begun=sent.begun)
    if is_whole:
        await reply.write(events + sent.cached_as_first(prefilled.last_events(asked)))
        await reply.end()
        return True
    sent.created = prefilled.created
    if prefilled.kv_transfer_params is not None:
        prefilled.kv_transfer_params = sent.cached_as_first(prefilled.kv_transfer_params)
    sent.add(prefilled.summary.first_token)
    await reply.write(events, content=prefilled.shows(asked))
    return False
