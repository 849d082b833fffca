"""The second leg: find a D with room, have it read P's blocks, wait for its first bytes."""

from __future__ import annotations

from typing import Final

from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.core.net.client.errors import ConnectionLost
from baton_serve.core.process.failpoints import hit
from baton_serve.router.engines.legs import DecodeLeg
from baton_serve.router.engines.prefill_answer import PrefillAnswer
from baton_serve.router.placement import Ahead, Prefilled, choose
from baton_serve.router.placement.policies.least_loaded import LeastLoaded
from baton_serve.router.pool import Candidates, Reservation, Route, Worker
from baton_serve.router.pool.route import any_takes_work
from baton_serve.router.request.exchange import BlocksLost, Exchange
from baton_serve.router.request.failure_table import Failure, Leg
from baton_serve.router.request.sent_tokens import has_token, num_shown
from baton_serve.router.request.states import Event
from baton_serve.router.steps.attempt import LegAttempt, Legs
from baton_serve.router.steps.failures import TryAnother
from baton_serve.router.upstream.content import has_content
from baton_serve.router.upstream.events import END, EventCutter
from baton_serve.router.upstream.whole_answers import too_large
from baton_serve.router.upstream.worker_errors import error_event, may_try_another

#: Places requests about their prompts. No cache helps them, and a policy that looks at prefixes would send hundreds of
#: them that begin alike to one worker.
_LEAST_LOADED: Final = LeastLoaded()


def take_at_once(legs: Legs, request: Exchange, route: Route) -> bool:
    """Reserve a place on a D if the request may skip P: not while others wait for a D, and not after a failure."""
    rule, attempts = legs.skip_rule, request.attempts
    if rule.is_off or request.sent_tokens.begun or len(legs.queues.held):
        return False
    if attempts.failed_prefill or attempts.num_prefills:
        return False
    found = rule.workers_for(request.prompt, route.decode)
    if found is None:
        return False
    reason, workers = found
    worker = request.decode_worker = legs.pick_decode.pick(workers, Prefilled(request.prompt, None, 0))
    request.held.reservation = legs.pool.enter(worker, request.prompt.need.blocks_on(worker))
    legs.metrics.skipped_prefill[reason] += 1
    return True


class DecodeAttempt(LegAttempt[bytes]):
    """Asks a D; for a request about its prompt, a P. The result is the beginning of the answer: the first events of a
    stream, or a whole unstreamed body. The answer stays open, and P may free the blocks.
    """

    __slots__ = ("_about", "_failed", "_group", "_prefilled", "_source")

    def __init__(self, legs: Legs, request: Exchange, prefilled: PrefillAnswer | None) -> None:
        # Unstreamed and without P: D's first byte comes only with the complete answer.
        sent = Event.DECODE_SENT if prefilled or request.asked.stream else Event.DECODE_ALONE
        super().__init__(legs, request, Leg.ALONE if prefilled is None else Leg.DECODE, sent)
        self._prefilled = prefilled
        self._source = source = request.prefill_worker if prefilled else None
        self._about = Prefilled(request.prompt, source, prefilled.summary.remote_num_tokens if prefilled else 0)
        self._failed = request.attempts.tried_decode
        model = request.asked.model
        kind = request.asked.is_about_prompt or (source and source.layout_of(model))
        self._group = (model, kind, request.weights, self._failed)

    async def find(self) -> bool:
        legs, request = self._legs, self.request
        if request.held.reservation is not None:  # the request skipped P, because this worker had room
            self._found(request.held.reservation.worker)
            return True
        if request.held.lease_end is not None:
            raise BlocksLost(Failure.LEASE_LOST)
        need = self._about.need
        need.check(self._readers(), request.asked.prompt_param)
        queue = legs.queues.prefill if request.asked.is_about_prompt else legs.queues.held
        place = await legs.waiting.for_room(request, queue, self.pick, self._group, need)
        request.decode_worker = place.worker
        self._found(place.worker)
        return True

    def _readers(self) -> Candidates:
        """The workers that may decode it, busy or not."""
        # Only a D with P's weights can read from P, so the fingerprint is checked only without P.
        request, source = self.request, self._source
        route = request.route(any_weights=source is not None)
        if route is None:  # all workers of the model left while this request waited; others may register
            return Candidates()
        if request.asked.is_about_prompt and route.can_prefill:
            return route.prefill
        return route.readers(source) if source else route.decode

    def pick(self, ahead: Ahead) -> Reservation | None:
        """Reserve a place on the best of those with room. Raises BlocksLost if none is left that could read them."""
        need = self._about.need
        readers, source = self._readers(), self._source
        worker = self._choose(readers, ahead)
        if worker is not None:
            return self._legs.pool.enter(worker, need.blocks_on(worker))
        if source is not None and not any_takes_work(readers) and self._switches_layout(source):
            ahead.groups.discard(self._group)  # it waits no longer, so the others of the group are asked as well
            raise BlocksLost(Failure.NO_READER)
        return None

    def _choose(self, readers: Candidates, ahead: Ahead) -> Worker | None:
        legs, fits = self._legs, self._about.need.fits
        if not self.request.asked.is_about_prompt:
            return choose(legs.pick_decode, readers, self._failed, fits, ahead, self._group, self._about)

        def fits_on_p(worker: Worker) -> bool:
            return fits(worker, legs.lease_limit.since_report(worker))

        return choose(_LEAST_LOADED, readers, self._failed, fits_on_p, ahead, self._group, self._about)

    def _switches_layout(self, source: Worker) -> bool:
        """Have the request start again with a P and a D of another KV layout, if there are such workers.

        All P of ``source``'s layout are then excluded for this request: they work, but no D can read from them. Another
        adapter under the same name counts as another layout. Returns False if there is no other layout, or the retry
        budget is spent.
        """
        request, model = self.request, self.request.asked.model
        route = request.route()
        if route is None:  # all workers of the model left; others may register
            return False
        ours = source.layout_of(model)
        if not any(
            reader.takes_work
            for worker in route.prefill
            if worker.takes_work and worker.layout_of(model) != ours
            for reader in route.readers(worker)
        ):
            return False
        if not self._legs.retry_budget.take(request.clock()):
            return False  # the request continues to wait for a D
        request.attempts.failed_prefill |= {worker for worker in route.prefill if worker.layout_of(model) == ours}
        return True

    async def ask(self) -> bytes:
        """Have D read and decode. Raises BlocksLost also if D began after P may have given up the blocks."""
        hit("router.decode.chosen")
        request = self.request
        first = await self._first_bytes()
        if self._is_too_late():
            # An unstreamed answer begins when it is complete. If the lease cannot be renewed, an answer that takes
            # longer would be thrown away at every attempt.
            request.goes_whole = not request.asked.stream
            raise BlocksLost(Failure.LEASE_LOST)
        hit("router.decode.first_byte")
        request.tokens_come_from(self.worker)
        lease, request.held.lease = request.held.lease, None
        if lease is not None and lease.confirmed():
            self._legs.lease_limit.end(lease.lease_id)
        request.held.engine_id = ""
        return first

    def _is_too_late(self) -> bool:
        """Whether P may have given up the blocks, and D has no fence that would notice.

        The attempt asks this before it sends D the parameters, and again when D begins to answer. If P surely kept the
        blocks until then, D has read the promised blocks. Otherwise D may have read the blocks of another prompt.
        """
        lease = self.request.held.lease
        return lease is not None and not self.engine.still_held(lease, self.worker)

    async def _first_bytes(self) -> bytes:
        request, settings = self.request, self._legs.settings
        leg = self.engine.decode_leg(request, self._prefilled)
        # A worker that is asked about the prompt has to compute all of it first.
        wait_s = settings.prefill_timeout_s if request.asked.is_about_prompt else settings.first_byte_timeout_s
        answer = request.held.answer = await self._send(
            leg.headers,
            leg.body,
            wait_s,
            None if request.asked.stream else self._patience,  # an unstreamed answer comes only when it is complete
            once=leg.once,
            sending=self._sending,
        )
        answer.watch(settings.token_timeout_s)
        if answer.status == 200 and request.asked.stream:
            return await self._open_stream(answer, leg, wait_s)
        return await self._whole(answer, settings.request_timeout_s)

    async def _patience(self) -> None:
        if self.engine.may_have_read(self.request):
            await self._legs.liveness.until_silent(self.worker, self._legs.settings.token_timeout_s)

    def _sending(self) -> None:
        # Not earlier: until there is a connection to D, a client that leaves has its blocks freed at once.
        if self._is_too_late():
            raise BlocksLost(Failure.LEASE_LOST)
        if self.request.held.lease is not None:
            self.request.held.lease.given()

    async def _open_stream(self, answer: HttpAnswer, leg: DecodeLeg, timeout_s: float) -> bytes:
        request, settings = self.request, self._legs.settings
        begins = StreamOpening(
            None if request.asked.passed_on else self.engine.num_opening_events(request),
            settings.max_event_bytes,
            settings.max_answer_bytes,
            comments_tell=self.worker.kind.comments_tell,
            echoes=request.asked.is_about_prompt and leg.names_tokens,
        )
        first = await begins.read(answer, timeout_s)
        opens = request.asked.chat and not request.sent_tokens.begun
        request.sent_tokens.leg(first, named=leg.names_tokens, opens=opens)
        return first


class StreamOpening:
    """Reads the first events of a stream, until there are enough of them and none is an error.

    An engine may send a role first, and only then an error. vLLM may send comments before it has read the blocks, so
    they are not counted (``comments_tell``). If the stream echoes its prompt, the router waits for the whole prompt:
    another worker can continue after any token of the answer, but not inside the prompt.
    """

    def __init__(
        self,
        num_events: int | None,
        max_event_bytes: int,
        max_answer_bytes: int,
        *,
        comments_tell: bool = False,
        echoes: bool = False,
    ) -> None:
        """``num_events``: how many are enough. None: the router does not know such events, and waits for content."""
        self._num_events = num_events
        self._max_event_bytes = max_event_bytes
        self._max_answer_bytes = max_answer_bytes
        self._num_seen = 0
        self._comments_tell = comments_tell
        self._echoes = echoes

    async def read(self, answer: HttpAnswer, timeout_s: float) -> bytes:
        """Read them within ``timeout_s``. Raises CallError, TryAnother, and ApiError."""
        timer = answer.fail_after(timeout_s)
        try:
            return await self._read(answer)
        finally:
            if timer is not None:
                timer.cancel()

    async def _read(self, answer: HttpAnswer) -> bytes:
        cutter = EventCutter(self._max_event_bytes)
        first = bytearray()
        while True:
            data = await answer.chunk()
            events = cutter.feed(data) if data else cutter.rest()
            failure = error_event(events)
            if failure is not None:
                raise TryAnother(failure) if may_try_another(failure) else failure
            if not data:
                raise ConnectionLost("the stream ended before it began")
            first += events
            if self._are_enough(events, len(first)):
                return bytes(first) + cutter.rest()
            if len(first) > self._max_answer_bytes:
                what = "The prompt with which the answer begins is larger than this router takes"
                raise too_large(what, self._max_answer_bytes)

    def _are_enough(self, events: bytes, num_bytes: int) -> bool:
        """``events``: the events of the last piece. ``num_bytes``: the size of all pieces so far."""
        self._num_seen += events.count(END) if self._comments_tell else num_shown(events)
        if self._echoes:
            return has_token(events)
        if self._num_events is not None:
            return self._num_seen >= self._num_events
        return has_content(events) or num_bytes > self._max_event_bytes
