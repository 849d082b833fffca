"""D's bytes to the client, as they come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocol.errors import UpstreamError
from router.prefill_answer import DONE_EVENT
from router.request import Event
from router.upstream import LegError
from router.worker_errors import error_event

if TYPE_CHECKING:
    from router.exchange import Exchange


async def relay(x: Exchange, first: bytes) -> None:
    """Send ``first`` and all that follows. Raises UpstreamError when D fails or its stream ends without its end."""
    if not x.ask.stream:
        await x.reply.whole(200, b"application/json", first)
    elif await _pump(x, first):
        await x.reply.end()
    else:
        x.services.metrics.relayed_errors += 1
        await x.reply.end()
        x.on(Event.FAILED)
        return
    x.on(Event.FINISHED)


async def _pump(x: Exchange, data: bytes) -> bool:
    """Until the stream ends; False when it ended with an error that the client has been sent."""
    answer, reply, itl = x.answer, x.reply, x.services.metrics.itl
    assert answer is not None
    clock = asyncio.get_running_loop().time
    last_s = clock()
    last = b""
    try:
        while data:
            # One event a token. The few others (role, usage, end) do not matter to a person who watches.
            x.num_tokens += data.count(b"\n\n")
            x.num_chunks += 1
            last = data
            await reply.write(data)
            data = await answer.chunk()
            now_s = clock()
            itl.observe(now_s - last_s)
            last_s = now_s
    except LegError as error:
        raise UpstreamError(f"The decode worker failed: {error}.") from None
    if last.endswith(DONE_EVENT) or DONE_EVENT.endswith(last):
        return True
    if error_event(last) is not None:
        return False
    raise UpstreamError("The decode worker's stream ended early.")
