"""D's bytes to the client, as they come, but only whole events: an error, or another worker's, may follow any time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from core.process.failpoints import hit
from core.protocol.errors import UpstreamError
from router.request.sent_tokens import num_shown
from router.request.states import Event
from router.steps.failures import BrokeOff
from router.steps.prefill_answer import DONE_EVENT
from router.steps.retry import after_stream, hold_against
from router.upstream.events import END, EventCutter, EventTooLarge
from router.upstream.port import LegError
from router.upstream.worker_errors import LOOKS_FAILED, error_event, may_try_another

if TYPE_CHECKING:
    from core.protocol.errors import ApiError
    from router.request.exchange import Exchange
    from router.request.sent_tokens import Seen


async def relay(x: Exchange, first: bytes) -> bool:
    """Send ``first`` and all that follows. False: D failed, and another worker shall go on; the request is QUEUED.

    Raises ApiError when D fails or its stream ends without its end, and nobody can go on.
    """
    if not x.ask.stream:
        _judge(x, None)
        await x.reply.whole(200, b"application/json", first)
        x.on(Event.FINISHED)
        return True
    try:
        x.relayed_error = await _pump(x, first)
    except BrokeOff as broken:
        _judge(x, broken.error)
        after_stream(x, broken)
        x.vacate()  # closes the connection: should that worker come back, it can do no harm
        x.seen.begun = True
        x.on(Event.BROKE_OFF)
        return False
    _judge(x, x.relayed_error)
    await x.reply.end()
    if x.relayed_error is not None:
        x.services.metrics.relayed_errors += 1
        x.on(Event.FAILED)
        return True
    x.on(Event.FINISHED)
    return True


def _judge(x: Exchange, error: ApiError | None) -> None:
    """D's part is over: what that says of D. A client that left says nothing."""
    if x.decode_worker is None:
        return
    if error is None:
        x.services.pool.worked(x.decode_worker)
    else:
        hold_against(x, x.decode_worker, error)


async def _pump(x: Exchange, data: bytes) -> ApiError | None:
    """Until the stream ends; the error that was in it, which the client has been sent.

    Raises BrokeOff, and EventTooLarge, which says nothing of D.
    """
    answer, reply, itl = x.answer, x.reply, x.services.metrics.itl
    assert answer is not None
    seen = x.seen if x.seen.named else None
    clock = asyncio.get_running_loop().time
    # From the first token on: the wait for the second one is the hand-off, as a client feels it.
    last_s = reply.first_content_s
    last = b""
    cutter = EventCutter(x.services.settings.max_event_bytes)
    failed: ApiError | None = None
    try:
        while data:
            data = cutter.feed(data)
            if data:
                # One event a token. The few others (role, usage, end) do not matter to a person who watches.
                num_events = data.count(END)
                last = data
                if failed is None and LOOKS_FAILED in data:
                    failed = error_event(data)
                    if failed is not None and seen is not None and may_try_another(failed):
                        await _before_the_error(x, seen, data)
                        raise BrokeOff(failed)
                if seen is not None:
                    data = seen.take(data, num_events)
                num_events = num_shown(data) if num_events > 1 or data[:1] == b":" else 1
            if data and not num_events:
                await reply.write(data, content=False)  # no event: a worker says that it computes
            elif data:
                x.num_tokens += num_events
                x.num_chunks += 1
                now_s = clock()
                if last_s is not None:
                    itl.observe(now_s - last_s)
                last_s = now_s
                await reply.write(data)
                hit("router.relay.event")
            data = await answer.chunk()
    except (LegError, EventTooLarge) as error:
        if failed is None and not last.endswith(DONE_EVENT):  # after it nothing is missing but the end of the body
            raise _breaks_off(error) from None
    if failed is not None or last.endswith(DONE_EVENT):
        return failed
    raise BrokeOff(UpstreamError("The decode worker's stream ended early."))


def _breaks_off(error: LegError | EventTooLarge) -> BrokeOff | EventTooLarge:
    """Another worker's event would be as large; anything else it may do better."""
    if isinstance(error, EventTooLarge):
        return error
    return BrokeOff(UpstreamError(f"The decode worker failed: {error}."), error)


async def _before_the_error(x: Exchange, seen: Seen, data: bytes) -> None:
    """Send the events of ``data`` up to its error event."""
    events = data.split(END)
    num_good = next(i for i, event in enumerate(events) if error_event(event) is not None)
    if num_good:
        good = seen.take(END.join(events[:num_good]) + END, num_good)
        if good:
            x.num_tokens += num_good
            await x.reply.write(good)
