"""What both legs share: waiting for a worker with room, and what a failed attempt means."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocol.errors import ApiError, DeadlineError, UnavailableError, UpstreamError
from router.admission import retry_after_s
from router.placement import Ahead
from router.try_again import was_not_taken
from router.upstream import AnswerTooLarge, ConnectError, LegError, LegTimeout
from router.worker_errors import ABORTED, ENGINE_DEAD, ENGINE_GONE, READ_FAILED

if TYPE_CHECKING:
    from collections.abc import Hashable

    from router.exchange import Exchange
    from router.placement import Need
    from router.room_queue import Pick, RoomQueue, Waiter
    from router.upstream import Answer
    from router.workers import Worker


#: The first D tells of P's blocks; the second somebody wanted; the third a worker says when it takes nothing new.
_NOT_ITS_FAULT = frozenset({READ_FAILED, ABORTED, "draining"})
_WITHOUT_ENGINE = frozenset({ENGINE_DEAD, ENGINE_GONE})


class LeaseLost(Exception):
    """P no longer holds the blocks of a request that waits for a D."""


class NoReader(Exception):
    """Nobody is there who could read the blocks of a request that waits for a D, but others can take all of it."""


class TryAnother(Exception):
    """A worker failed in a way that another one may not. ``error`` is for the client if nobody is left."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def cause_of(error: LegError | TryAnother) -> LegError | ApiError:
    """What became of the connection, or what the worker said."""
    return error.error if isinstance(error, TryAnother) else error


def api_error(error: LegError | TryAnother) -> ApiError:
    """What the client is told when this was the last attempt."""
    cause = cause_of(error)
    if isinstance(cause, ConnectError) or was_not_taken(cause):
        return UnavailableError("No worker for this request can be reached.", code="worker_unreachable")
    if isinstance(cause, ApiError):
        return cause
    if isinstance(cause, LegTimeout):
        return DeadlineError(f"No answer in time: {cause}.", code="worker_timeout")
    return UpstreamError(f"A worker failed: {cause}.")


async def read_whole(x: Exchange, answer: Answer, timeout_s: float) -> bytes:
    """The body of a worker's answer. Raises LegError, and UpstreamError where every worker's would be as large."""
    limit_bytes = x.services.settings.max_answer_bytes
    try:
        return await answer.read(limit_bytes, timeout_s)
    except AnswerTooLarge:
        if answer.status != 200:
            return b""  # the status says enough
        raise UpstreamError(
            f"The answer is larger than this router takes of one that is not streamed: {limit_bytes} bytes "
            "(max_answer_bytes).",
            code="answer_too_large",
        ) from None


def leave_failed(x: Exchange, worker: Worker, error: LegError | TryAnother) -> None:
    """Give back the place on a worker that failed. One that is gone is left out before its place is free."""
    cause = cause_of(error)
    if isinstance(cause, ConnectError):
        x.services.pool.unreachable(worker)
    else:
        hold_against(x, worker, cause if isinstance(cause, ApiError) else api_error(error))
    x.vacate()


def hold_against(x: Exchange, worker: Worker, error: ApiError) -> None:
    """Note what a worker said, or did. One whose engine is dead is as gone as one that cannot be reached."""
    if error.code in _WITHOUT_ENGINE:
        x.services.pool.unreachable(worker, "has no engine any more")
    elif is_the_workers_fault(error):
        x.services.pool.failed(worker)


def is_the_workers_fault(error: ApiError) -> bool:
    """It counts against the worker that told it. Being busy or about to leave does not, nor what another one broke."""
    return error.status >= 500 and error.code not in _NOT_ITS_FAULT


def _give_up(x: Exchange, waiter: Waiter) -> None:
    waiter.fail(
        UnavailableError("No worker had room in time.", code="no_room", retry_after_s=retry_after_s(x.services))
    )


async def wait_for_room(x: Exchange, queue: RoomQueue, pick: Pick, group: Hashable, need: Need) -> Worker:
    """A worker with a place reserved for this request, which now holds the place.

    Raises UnavailableError after ``held_timeout_s``, and whatever the waiter was failed with.
    """
    place = None if len(queue) else pick(Ahead())
    if place is None:
        waiter = x.waiter = queue.enter(pick, x.ask.priority, x.number, group, x.num_bytes, need)
        waiter.may_be_refused = lambda: not x.reply.started
        timer = asyncio.get_running_loop().call_later(x.services.settings.held_timeout_s, _give_up, x, waiter)
        waiting = x.services.metrics.waiting
        key = "held" if queue is x.services.held_queue else "prefill", x.services.priorities.name_of(x.ask.priority)
        waiting[key] += 1
        try:
            place = await waiter.place()
        finally:
            waiting[key] -= 1
            timer.cancel()
            x.waiter = None
    x.occupy(place)
    worker = place.worker
    abort = x.services.prefill_aborts.under_way(worker.internal_url, x.request_id)
    if abort is not None:  # of our last attempt there; it must not end this one
        await asyncio.wait({abort})
    return worker
