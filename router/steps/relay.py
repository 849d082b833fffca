"""Passes on D's stream to the client. If D dies in the middle, ``run`` has another worker continue it (migration).

Bytes are passed on as they arrive, but only as whole events: after any event an error, or another worker's events,
may follow.
"""

from __future__ import annotations

import asyncio
from typing import Final

from baton_serve.core.net.answers import JSON
from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.core.net.client.errors import CallError
from baton_serve.core.process.failpoints import hit
from baton_serve.core.protocol.errors import ApiError, UpstreamError
from baton_serve.router.request.attempts import Decision
from baton_serve.router.request.exchange import Exchange
from baton_serve.router.request.sent_tokens import SentTokens, num_shown
from baton_serve.router.steps.failures import StreamBroken
from baton_serve.router.steps.judge import Judge
from baton_serve.router.telemetry.metrics.buckets import Buckets
from baton_serve.router.upstream.content import has_content
from baton_serve.router.upstream.events import DONE_EVENT, END, EventCutter, EventTooLarge, by_few, ends_with_done
from baton_serve.router.upstream.worker_errors import LOOKS_FAILED, error_event, may_try_another

#: A chunk of the client's answer has at most this many events, and before them the opening ones without content. Some
#: clients show all text of a chunk at once.
EVENTS_IN_A_CHUNK: Final = 4
#: The content type of an answer that is no JSON, such as embeddings as bytes; vLLM's header ``metadata`` describes it.
_BYTES: Final = b"application/octet-stream"


class Relay:
    """Passes on the answers of all requests. ``max_event_bytes``: the longest event that it takes."""

    def __init__(self, judge: Judge, itl: Buckets, max_event_bytes: int) -> None:
        """``itl``: where gaps between tokens are counted, seconds."""
        self._judge = judge
        self._itl = itl
        self._max_event_bytes = max_event_bytes

    async def run(self, request: Exchange, first: bytes) -> Decision | None:
        """Send ``first`` and the rest of the answer. None: the client has been sent all there is.

        Else D failed, or its stream ended too early.
        """
        if not request.asked.stream:
            self._judge.ended(request.decode_worker, None)
            content_type, headers = _described(request)
            await request.reply.whole(200, content_type, first, headers)
            return None
        try:
            request.relayed_error = await self.pump(request, first)
        except StreamBroken as broken:
            self._judge.ended(request.decode_worker, broken.error)
            return self._judge.broken(request, broken)
        self._judge.ended(request.decode_worker, request.relayed_error)
        if request.stop_error is None:
            await request.reply.end()
        else:
            request.reply.end_now()  # its time is over, but not for the client: it has the last event
        return None

    async def pump(self, request: Exchange, first: bytes) -> ApiError | None:
        """Pass on the stream until it ends. Returns the error in it, which the client has been sent; None if none.

        Once the client has the last event, only the end of D's HTTP body is missing: the request is done then, though D
        fails or the request is stopped.

        Raises StreamBroken, and EventTooLarge, which does not count as a failure of D.
        """
        answer, reply = request.held.answer, request.reply
        assert answer is not None
        pump = _Pump(request, answer, self._itl, self._max_event_bytes)
        try:
            if not pump.take(first):
                await reply.drain()
            while not await answer.pass_on(pump.take):
                await reply.drain()
        except (CallError, EventTooLarge) as error:
            if pump.failed is None and not pump.is_done:
                raise _broken(error) from None
        except asyncio.CancelledError:
            if request.stop_error is None or request.task is None or not pump.is_done:
                raise
            request.task.uncancel()
        if pump.failed is not None or pump.is_done:
            return pump.failed
        if not (request.asked.ends_with_done or pump.cutter.rest()):
            return None
        raise StreamBroken(UpstreamError("The decode worker's stream ended early."))


def _described(request: Exchange) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """The content type of an unstreamed answer, and what other headers belong to it."""
    answer = request.held.answer
    if answer is None or not request.asked.passed_on:
        return JSON, ()
    kind = answer.content_type.partition(b";")[0].strip().lower()
    return JSON if kind == JSON else _BYTES, ((b"metadata", answer.metadata),) if answer.metadata else ()


class _Pump:
    """Takes D's stream piece by piece, and sends the client the events that are whole."""

    __slots__ = ("_answer", "_clock", "_itl", "_last_s", "_reply", "_request", "_sent", "cutter", "failed", "last")

    def __init__(self, request: Exchange, answer: HttpAnswer, itl: Buckets, max_event_bytes: int) -> None:
        self._request = request
        self._answer = answer
        self._reply = request.reply
        self._itl = itl
        self._clock = request.clock
        #: None: D does not name its tokens.
        self._sent: SentTokens | None = request.sent_tokens if request.sent_tokens.named else None
        #: When the client was sent the last content. Gaps are measured from the first token on: the one before the
        #: second token is the hand-off that a client sees.
        self._last_s = request.reply.first_content_s
        self.cutter = EventCutter(max_event_bytes, is_begun=True)
        #: The last events.
        self.last = b""
        #: The error in the stream, which the client has been sent.
        self.failed: ApiError | None = None

    @property
    def is_done(self) -> bool:
        """Whether the last event of the stream has come."""
        return self.last.endswith(DONE_EVENT) or ends_with_done(self.last)

    def take(self, data: bytes) -> bool:
        """Send what is whole of ``data``. Returns False if the client does not read as fast as D sends.

        Raises StreamBroken and EventTooLarge.
        """
        data = self.cutter.feed(data)
        if not data:
            return True
        if self.failed is None and data.find(LOOKS_FAILED) >= 0:  # ``in`` would first look for a number
            self._look_for_error(data)
        if self._sent is not None:
            data = self._sent.take(data, data.count(END))
            if not data:
                return True
        # Nearly every event is one token; the others (role, usage, end) are too few to matter.
        num_events = num_shown(data)
        if not num_events:  # only comments
            worker = self._request.decode_worker
            if worker is not None and not worker.kind.comments_tell:
                self._answer.disregard_piece()  # the worker may have ceased to compute
            return self._reply.put_comments(data)
        self.last = data
        return self._put(data, num_events)

    def _put(self, data: bytes, num_events: int) -> bool:
        request, reply = self._request, self._reply
        request.progress.num_tokens += num_events
        request.progress.num_chunks += 1
        last_s, now_s = self._last_s, self._clock()
        if last_s is not None:
            self._itl.observe(now_s - last_s)
        self._last_s = now_s
        if not reply.started and not has_content(data):
            self._last_s = None
            goes_on = reply.put(data, content=False)
        elif num_events <= EVENTS_IN_A_CHUNK:
            goes_on = reply.put(data)
        else:
            goes_on = self._put_many(data)
        hit("router.relay.event")
        return goes_on

    def _put_many(self, data: bytes) -> bool:
        for number, some in enumerate(by_few(data, EVENTS_IN_A_CHUNK)):
            if number:
                self._itl.observe(0.0)  # it leaves together with the one before it
                self._request.progress.num_chunks += 1
            goes_on = self._reply.put(some)
        return goes_on

    def _look_for_error(self, data: bytes) -> None:
        self.failed = failed = error_event(data)
        if failed is not None and self._sent is not None and may_try_another(failed):
            _before_the_error(self._request, self._sent, data)
            raise StreamBroken(failed)


def _broken(error: CallError | EventTooLarge) -> StreamBroken | EventTooLarge:
    """StreamBroken, which another worker may continue; or the EventTooLarge itself, which any worker would repeat."""
    if isinstance(error, EventTooLarge):
        return error
    return StreamBroken(UpstreamError(f"The decode worker failed: {error}."), error)


def _before_the_error(request: Exchange, sent: SentTokens, data: bytes) -> None:
    """Send the events of ``data`` up to its error event."""
    events = data.split(END)
    num_good = next(i for i, event in enumerate(events) if error_event(event) is not None)
    if num_good:
        good = sent.take(END.join(events[:num_good]) + END, num_good)
        if good:
            request.progress.num_tokens += num_good
            request.reply.put(good)
