"""The second leg: find a D with room, have it read P's blocks, wait for its first bytes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from baton_serve.core.net.client.errors import CallError, ConnectionLost
from baton_serve.core.process.failpoints import hit
from baton_serve.core.process.tracebacks import forget_frames
from baton_serve.router.placement import Prefilled, choose
from baton_serve.router.placement.least_loaded import LeastLoaded
from baton_serve.router.pool import Candidates
from baton_serve.router.pool.route import any_takes_work
from baton_serve.router.request.exchange import LeaseLost
from baton_serve.router.request.failure_table import Next
from baton_serve.router.request.sent_tokens import has_token
from baton_serve.router.request.states import Event, State
from baton_serve.router.steps.failures import TryAnother
from baton_serve.router.steps.retry import after_decode, after_lease_lost, after_no_reader, continued
from baton_serve.router.steps.waiting import wait_for_room
from baton_serve.router.upstream.content import has_content
from baton_serve.router.upstream.events import END, EventCutter
from baton_serve.router.upstream.port import read_whole, too_large
from baton_serve.router.upstream.worker_errors import error_event, from_worker, may_try_another

if TYPE_CHECKING:
    from baton_serve.router.engines.prefill_answer import PrefillAnswer
    from baton_serve.router.placement import Ahead
    from baton_serve.router.pool import Reservation, Worker
    from baton_serve.router.request.attempts import Decision
    from baton_serve.router.request.exchange import Exchange
    from baton_serve.router.services import Services
    from baton_serve.router.upstream.port import Answer


#: For requests about their prompts, which no cache helps: hundreds of them may share a beginning.
_LEAST_LOADED: Final = LeastLoaded()


class NoReader(Exception):
    """No D is left that could read the blocks of a waiting request, but other workers can take it from prefill on."""


async def decode(services: Services, request: Exchange, prefilled: PrefillAnswer | None) -> bytes | None:
    """Have a D decode, and return how its answer begins: the first events of a stream, or a whole unstreamed body.

    The request is then DECODING, and ``request.answer`` is open. Returns None, with the request QUEUED, when it has to
    start again from prefill. ``prefilled`` None: the worker prefills too, so there are no blocks to lose. Raises
    ApiError.
    """
    while True:
        try:
            worker = await _find(services, request, prefilled)
        except LeaseLost as lost:
            forget_frames(lost)
            after_lease_lost(services, request)
            _start_again(services, request)
            return None
        except NoReader as no_reader:
            forget_frames(no_reader)
            after_no_reader(services, request)
            _start_again(services, request)
            return None
        request.on(Event.DECODE_SENT if prefilled or request.asked.stream else Event.DECODE_ALONE)
        hit("router.decode.chosen")
        decision: Decision | None = None
        try:
            first = await _first_bytes(services, request, worker, prefilled)
        except (CallError, TryAnother) as error:
            decision = after_decode(services, request, worker, error, has_blocks=prefilled is not None)
            if decision.next is not Next.PREFILL:
                request.on(Event.DECODE_AGAIN)
                continue
        except LeaseLost:
            _give_up_blocks(services, request)
            return None
        if decision is not None:
            _start_again(services, request)
            await asyncio.sleep(decision.wait_s)
            return None
        if _is_lost(services, request, worker):  # D may have read after the end of the lease
            # An unstreamed answer begins when it is complete. One that takes longer than a lease that nobody can renew
            # would be thrown away each time.
            request.goes_whole = not request.asked.stream
            _give_up_blocks(services, request)
            return None
        hit("router.decode.first_byte")
        request.tokens_come_from(worker)
        _confirmed(services, request)
        return first


def _is_lost(services: Services, request: Exchange, worker: Worker) -> bool:
    """Whether P may have given up the blocks, where no fence tells D.

    Asked just before D is sent the parameters, and again when D has begun to answer: an answer that began while P
    surely kept the blocks was made of what P promised, and any other may have been made of another prompt's.
    """
    return request.lease is not None and not services.engines.of(worker).still_held(request.lease, worker)


def _give_up_blocks(services: Services, request: Exchange) -> None:
    """Leave D, and have the request prefilled again. Raises ApiError if it must not be."""
    request.vacate()
    after_lease_lost(services, request)
    _start_again(services, request)


def _start_again(services: Services, request: Exchange) -> None:
    request.drop_lease()
    request.on(Event.PREFILL_AGAIN)
    services.metrics.retries["prefill_again"] += 1


def _confirmed(services: Services, request: Exchange) -> None:
    """Stop renewing the lease: D has answered, so it has read P's blocks."""
    if request.progress.state is State.READING:
        request.on(Event.FIRST_BYTE)
    if request.lease is not None:
        if request.lease.confirmed():
            services.lease_limit.end(request.lease.lease_id)
        request.lease = None
    request.engine_id = ""
    continued(services, request)


async def _find(services: Services, request: Exchange, prefilled: PrefillAnswer | None) -> Worker:
    """Wait for a D, and reserve a place on it. Raises LeaseLost, NoReader and ApiError."""
    if request.reservation is not None:  # the request skipped P, because this worker had room
        return request.reservation.worker
    if request.lease_end is not None:
        raise LeaseLost
    search = _Search(services, request, prefilled)
    search.need.check(search.readers(), request.asked.prompt_param)
    queue = services.prefill_queue if request.asked.is_about_prompt else services.held_queue
    worker = await wait_for_room(services, request, queue, search.pick, search.group, search.need)
    request.decode_worker = worker
    return worker


class _Search:
    """Looks for a D with room for one request, again and again while it is held; for one that is about its prompt, for
    a P that does it all.
    """

    __slots__ = ("_about", "_failed", "_request", "_services", "_source", "group", "need")

    def __init__(self, services: Services, request: Exchange, prefilled: PrefillAnswer | None) -> None:
        self._services = services
        self._request = request
        self._source = source = request.prefill_worker if prefilled else None
        self._about = Prefilled(request.prompt, source, prefilled.summary.remote_num_tokens if prefilled else 0)
        self._failed = request.attempts.tried_decode
        model = request.asked.model
        kind = request.asked.is_about_prompt or (source and source.layout_of(model))
        self.group = (model, kind, request.weights, self._failed)
        self.need = self._about.need

    def readers(self) -> Candidates:
        """The workers that may decode it, busy or not."""
        # Only a D with P's weights can read from P, so the fingerprint is checked only without P.
        request, source = self._request, self._source
        route = self._services.pool.candidates(request.asked.model, request.weights if source is None else None)
        if route is None:  # all workers of the model left while this request waited; others may register
            return Candidates()
        if request.asked.is_about_prompt and route.can_prefill:
            return route.prefill
        return route.readers(source) if source else route.decode

    def pick(self, ahead: Ahead) -> Reservation | None:
        """Reserve a place on the best of those with room. Raises NoReader."""
        services, need = self._services, self.need
        readers, source = self.readers(), self._source
        worker = self._choose(readers, ahead)
        if worker is not None:
            return services.pool.enter(worker, need.blocks_on(worker))
        if source is not None and not any_takes_work(readers) and switch_layout(services, self._request, source):
            ahead.groups.discard(self.group)  # it waits no longer, so the others of the group are asked as well
            raise NoReader
        return None

    def _choose(self, readers: Candidates, ahead: Ahead) -> Worker | None:
        services, fits = self._services, self.need.fits
        if not self._request.asked.is_about_prompt:
            return choose(services.pick_decode, readers, self._failed, fits, ahead, self.group, self._about)

        def fits_on_p(worker: Worker) -> bool:
            return fits(worker, services.lease_limit.since_report(worker))

        return choose(_LEAST_LOADED, readers, self._failed, fits_on_p, ahead, self.group, self._about)


def switch_layout(services: Services, request: Exchange, source: Worker) -> bool:
    """Have a request start again with a P and a D of another KV layout than ``source``'s, if there are such workers.

    All P of ``source``'s layout are then excluded for this request: they work, but no D can read from them. Another
    adapter under the same name counts as another layout. Returns False if there is no other layout, or the retry budget
    is spent.
    """
    model = request.asked.model
    route = services.pool.candidates(model, request.weights)
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
    if not services.retry_budget.take(request.clock()):
        return False  # the request continues to wait for a D
    request.attempts.failed_prefill |= {worker for worker in route.prefill if worker.layout_of(model) == ours}
    return True


async def _first_bytes(services: Services, request: Exchange, worker: Worker, prefilled: PrefillAnswer | None) -> bytes:
    """The first events of D's stream, or the whole unstreamed body.

    Raises CallError, TryAnother, ApiError, and LeaseLost if the blocks were given up before D could be asked.
    """
    settings = services.settings

    engine = services.engines.of(worker)
    leg = engine.decode_leg(request, prefilled)
    # A worker that is asked about the prompt has to compute all of it first.
    wait_s = settings.prefill_timeout_s if request.asked.is_about_prompt else settings.first_byte_timeout_s

    async def patience() -> None:
        if engine.may_have_read(request):
            await services.liveness.until_silent(worker, settings.token_timeout_s)

    def sending() -> None:
        # Not earlier: until there is a connection to D, a client that leaves has its blocks freed at once.
        if _is_lost(services, request, worker):
            raise LeaseLost
        if request.lease is not None:
            request.lease.given()

    answer = request.answer = await services.upstream.request(
        "POST",
        worker.url,
        request.asked.path,
        (*request.headers(), *leg.headers, *services.headers_for(worker)),
        leg.body,
        wait_s,
        None if request.asked.stream else patience,  # an unstreamed answer comes only when it is complete
        once=leg.once,
        sending=sending,
    )
    answer.watch(settings.token_timeout_s)
    if answer.status == 200 and request.asked.stream:
        opens = request.asked.chat and not request.sent_tokens.begun
        num_events, echoes = engine.num_opening_events(request), request.asked.is_about_prompt and leg.names_tokens
        judged = not request.asked.passed_on
        first = await _open_stream(services, answer, num_events, judged=judged, echoes=echoes, timeout_s=wait_s)
        request.sent_tokens.leg(first, named=leg.names_tokens, opens=opens)
        return first
    data = await read_whole(answer, settings.max_answer_bytes, settings.request_timeout_s)
    if answer.status == 200:
        return data
    error = from_worker(answer.status, data, answer.retry_after, as_sent=request.asked.passed_on)
    raise TryAnother(error) if may_try_another(error) else error


async def _open_stream(
    services: Services,
    answer: Answer,
    num_events: int,
    *,
    judged: bool,
    echoes: bool = False,
    timeout_s: float | None = None,
) -> bytes:
    """Read the first events, until there are ``num_events`` and none is an error. ``timeout_s``: for each of them, by
    default ``first_byte_timeout_s``.

    An engine may send a role first, and only then an error. Of a stream that the router does not judge it knows neither
    how many events open it, nor which are only comments, so it waits for content. With ``echoes`` it waits for all of
    the prompt: another worker could go on after any token, but not within the prompt.
    """
    settings = services.settings
    limit_bytes = settings.max_event_bytes
    timeout_s = settings.first_byte_timeout_s if timeout_s is None else timeout_s
    cutter = EventCutter(limit_bytes)
    first = bytearray()
    num_opening = 0
    while True:
        data = await answer.chunk(timeout_s)
        events = cutter.feed(data) if data else cutter.rest()
        failure = error_event(events)
        if failure is not None:
            raise TryAnother(failure) if may_try_another(failure) else failure
        if not data:
            raise ConnectionLost("the stream ended before it began")
        first += events
        num_opening += events.count(END)
        if echoes:
            has_begun = has_token(events)
        else:
            has_begun = num_opening >= num_events if judged else has_content(events) or len(first) > limit_bytes
        if has_begun:
            return bytes(first) + cutter.rest()
        if len(first) > settings.max_answer_bytes:
            what = "The prompt with which the answer begins is larger than this router takes"
            raise too_large(what, settings.max_answer_bytes)
