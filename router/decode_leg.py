"""The second leg: find a D with room, have it read P's blocks, wait for its first byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.errors import ApiError, UpstreamError
from protocol.failpoints import hit
from router.aborted import is_aborted, wait_out
from router.attempt import LeaseLost, NoReader, TryAnother, api_error, cause_of, leave_failed, read_whole, wait_for_room
from router.events import END, EventCutter
from router.placement import Prefilled, in_question, placeable
from router.request import Event, State
from router.seen import ASK_NAMES
from router.try_again import able, has_died, may_try_again, other_layout, was_not_taken
from router.upstream import ConnectError, ConnectionLost, LegError, LegTimeout
from router.worker_errors import READ_FAILED, error_event, from_worker, may_try_another

if TYPE_CHECKING:
    from router.exchange import Exchange
    from router.placement import Ahead
    from router.prefill_answer import PrefillAnswer
    from router.upstream import Answer
    from router.workers import Place, Worker

#: After this many workers could not read P's blocks, P is what is broken.
MAX_FAILED_READS = 2


async def decode(x: Exchange, prefilled: PrefillAnswer | None) -> bytes | None:
    """Until D's first bytes are here (all of them, unstreamed); the request is then DECODING, ``x.answer`` open.

    ``prefilled`` None: the worker prefills too, so there are no blocks to lose. Returns None when the request has
    to start again from prefill, for which it is QUEUED. Raises ApiError.
    """
    failed = set(x.failed_decode)
    failures = _Failures(has_blocks=prefilled is not None)
    while True:
        worker = await _find(x, prefilled, failed)
        if worker is None:
            _start_again(x)
            return None
        x.on(Event.DECODE_SENT if prefilled or x.ask.stream else Event.DECODE_ALONE)
        hit("router.decode.chosen")
        try:
            first = await _first_bytes(x, worker, prefilled)
        except (LegError, TryAnother) as error:
            leave_failed(x, worker, error)
            x.services.metrics.retries["decode"] += 1
            x.last_error = api_error(error)
            if is_aborted(x.last_error):
                await _was_aborted(x, x.last_error)
                return None
            failed.add(worker)
            if isinstance(error, LegTimeout):  # it may hang: not asked after another prefill either
                x.failed_decode.add(worker)
            failures.count(x, worker, error)
            if prefilled and (failures.is_p_broken or not _blocks_are_left(x, error)):
                if failures.is_p_broken and x.prefill_worker is not None:
                    x.failed_prefill.add(x.prefill_worker)
                _start_again(x)
                return None
            x.on(Event.DECODE_AGAIN)
            continue
        hit("router.decode.first_byte")
        x.seen.come_from(worker.weights_fingerprint)
        _confirmed(x)
        return first


class _Failures:
    """Of the D that were asked since the last prefill."""

    def __init__(self, *, has_blocks: bool) -> None:
        self._has_blocks = has_blocks
        self._num_attempts = self._num_reads = 0

    @property
    def is_p_broken(self) -> bool:
        """So many could not read from it."""
        return self._num_reads >= MAX_FAILED_READS

    def count(self, x: Exchange, worker: Worker, error: LegError | TryAnother) -> None:
        """One more; raises what the client is told when that was enough.

        A read that failed is no attempt at a D: as many end in another prefill, and those are counted.
        """
        assert x.last_error is not None
        cause = cause_of(error)
        if was_not_taken(cause):
            return
        if self._has_blocks and x.last_error.code == READ_FAILED:
            self._num_reads += 1
        else:
            self._num_attempts += 1
        if self._num_attempts >= x.services.settings.max_decode_attempts:
            raise x.last_error
        may_try_again(x, x.last_error, worker if has_died(cause) else None)


def _blocks_are_left(x: Exchange, error: LegError | TryAnother) -> bool:
    """Another D can read what P holds: under a lease of ours, or because the failed one never asked.

    An engine without our leases gives the blocks up as soon as a D has failed with them.
    """
    if x.lease_end is not None:
        return False
    return bool(x.lease_id) or (bool(x.engine_id) and isinstance(error, ConnectError))


def _start_again(x: Exchange) -> None:
    x.drop_lease()
    x.on(Event.PREFILL_AGAIN)
    x.services.metrics.retries["prefill_again"] += 1


async def _was_aborted(x: Exchange, error: ApiError) -> None:
    """Nobody failed, so no attempt counts. Whoever had D end it had P give up its blocks as well."""
    x.num_prefills -= 1
    _start_again(x)
    await wait_out(x, error)


def _confirmed(x: Exchange) -> None:
    """D has answered, so it has read: P's blocks are its own business again."""
    if x.progress.state is State.READING:
        x.on(Event.FIRST_BYTE)
    if x.lease_id:
        x.services.leases.untrack(x.engine_id, x.lease_id)
        x.services.leased.end(x.lease_id)
        x.lease_id = ""
    x.engine_id = ""
    x.goes_on()


async def _find(x: Exchange, prefilled: PrefillAnswer | None, failed: set[Worker]) -> Worker | None:
    """The next D, place reserved; None when P's blocks are gone, or no D that could read them is there any more."""
    services = x.services
    if x.place is not None:  # it skips P because there was room
        return x.place.worker
    source = x.prefill_worker if prefilled else None
    about = Prefilled(x.prompt, source, prefilled.summary.remote_num_tokens if prefilled else 0)

    group = (x.ask.model, source and source.compatibility_hash, x.seen.begun and x.seen.weights, frozenset(failed))
    need = about.need

    def readers() -> tuple[Worker, ...]:
        try:
            route = services.pool.route(x.ask.model)
        except ApiError:  # all of them left while this request waited; new ones may come
            return ()
        return route.readers(source) if source else able(x, route.decode)

    def pick(ahead: Ahead) -> Place | None:
        asked = in_question(readers(), failed)
        if source is not None and not asked and other_layout(x, source):
            raise NoReader
        workers = placeable(asked, need.fits, ahead, group)
        if not workers:
            return None
        worker = services.pick_decode.pick(workers, about)
        return services.pool.enter(worker, need.blocks_on(worker))

    if x.lease_end is not None:
        _lost(x)
        return None
    need.check(readers(), x.ask.prompt_param)
    try:
        worker = await wait_for_room(x, services.held_queue, pick, group, need)
    except LeaseLost:
        _lost(x)
        return None
    except NoReader:
        return None
    x.decode_worker = worker
    return worker


def _lost(x: Exchange) -> None:
    """P's blocks are gone. Raises what the client is told when nothing more may be tried."""
    may_try_again(x, x.last_error or UpstreamError("The prefill worker lost the blocks."), None)


async def _first_bytes(x: Exchange, worker: Worker, prefilled: PrefillAnswer | None) -> bytes:
    """What D begins with; its whole body if it is not streamed. Raises LegError, TryAnother, ApiError."""
    services, settings = x.services, x.services.settings

    async def patience() -> None:
        if _may_have_read(x):
            await services.signs_of_life.until_silent(worker, settings.token_timeout_s)

    # What a client has of an engine that is not ours cannot be told to another one.
    names = (ASK_NAMES,) if x.ask.stream and worker.compatibility_hash else ()
    answer = x.answer = await services.upstream.request(
        "POST",
        worker.url,
        x.ask.path,
        (("x-request-id", x.request_id), *names, *services.headers_for(worker)),
        x.bodies.decode(_params(x, prefilled)),
        settings.first_byte_timeout_s,
        None if x.ask.stream else patience,  # the first byte is also the last
    )
    answer.watch(settings.token_timeout_s)
    if answer.status == 200 and x.ask.stream:
        opens = x.ask.chat and not x.seen.begun
        first = await _open_stream(x, answer, num_events=2 if opens else 1)
        x.seen.leg(first, named=bool(names), opens=opens)
        return first
    data = await read_whole(x, answer, settings.request_timeout_s)
    if answer.status == 200:
        return data
    error = from_worker(answer.status, data, answer.retry_after)
    raise TryAnother(error) if may_try_another(error) else error


def _may_have_read(x: Exchange) -> bool:
    """D may be at work: there was nothing to read, or the lease is not held any more, or nobody knows of it.

    An expired lease says nothing: what a D reads late is good until it is overwritten, and then D prefills by itself.
    """
    if not x.lease_id or x.lease_end is not None:
        return True
    return x.services.leases.remaining_ms(x.engine_id, x.lease_id) is None


def _params(x: Exchange, prefilled: PrefillAnswer | None) -> bytes | None:
    """``kv_transfer_params``: P's, or what the client has seen of an answer that D goes on with alone."""
    if prefilled is not None:
        return prefilled.kv_transfer_params
    return b'{"resume":%b}' % x.seen.resume() if x.seen.begun else None


async def _open_stream(x: Exchange, answer: Answer, num_events: int) -> bytes:
    """The first events, once they cannot be an error: an engine may open with a role and only then say it failed."""
    timeout_s = x.services.settings.first_byte_timeout_s
    cutter = EventCutter(x.services.settings.max_event_bytes)
    first = b""
    while True:
        data = await answer.chunk(timeout_s)
        events = cutter.feed(data) if data else cutter.rest()
        failure = error_event(events)
        if failure is not None:
            raise TryAnother(failure) if may_try_another(failure) else failure
        if not data:
            raise ConnectionLost("the stream ended before it began")
        first += events
        if first.count(END) >= num_events:
            return first + cutter.rest()
