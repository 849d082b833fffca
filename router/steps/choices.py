"""The life of a request for several answers: each choice goes its own way through the steps, and all end together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from baton_serve.core.net.answers import JSON
from baton_serve.core.process.tracebacks import forget_frames
from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.pool import WorkerPool
from baton_serve.router.request.active import ActiveRequests
from baton_serve.router.request.choices.merging import last_events, merged, parsed
from baton_serve.router.request.choices.reply import ChoiceReply
from baton_serve.router.request.choices.whole import WholeRequest
from baton_serve.router.request.exchange import Exchange
from baton_serve.router.request.states import State
from baton_serve.router.steps.admission import Admission, num_at_once
from baton_serve.router.steps.run import Runner

log = logging.getLogger("baton.router")


class ChoicesRunner:
    """Runs requests for several answers."""

    def __init__(self, runner: Runner, admission: Admission, active: ActiveRequests, pool: WorkerPool) -> None:
        self._runner = runner
        self._admission = admission
        self._active = active
        self._pool = pool

    async def run(self, whole: WholeRequest) -> None:
        """Run all choices until the client has everything. The first error ends all of them. Raises ApiError."""
        asked, choices = whole.asked, whole.choices
        route = self._pool.route(asked.model)
        num = num_at_once(asked, route)
        gate = asyncio.Semaphore(num)
        make_room = partial(
            self._admission.make_room, route, asked.priority, num * whole.exchanges[0].body.num_bytes, num
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                for request in whole.exchanges:
                    request.task = tasks.create_task(self._run(whole, request, gate, make_room))
        except ExceptionGroup as group:
            first = _first(group)
            if isinstance(first, ApiError | _Relayed):  # a bug that is first is logged where it ends the request
                for bug in group.exceptions:
                    if not isinstance(bug, ApiError | _Relayed):
                        log.error("request %s met a bug beside the error", whole.request_id, exc_info=bug)
                forget_frames(group)
            await _fail(whole, first)
            return
        replies = [request.reply for request in whole.exchanges if isinstance(request.reply, ChoiceReply)]
        if asked.stream:
            usages = [one.events.usage for one in replies]
            await whole.reply.write(last_events(usages, choices.best_of, shows_usage=asked.include_usage))
            await whole.reply.end()
        else:
            answers = [parsed(one.body) for one in replies]
            await whole.reply.whole(200, JSON, merged(answers, choices, shows_logprobs=asked.logprobs))
        whole.end_state = State.DONE

    async def _run(
        self, whole: WholeRequest, request: Exchange, gate: asyncio.Semaphore, make_room: Callable[[], None]
    ) -> None:
        """``make_room`` makes room for all answers when the first choice starts, because the other choices start right
        after it: so a burst of such requests does not overfill the queue. ``make_room`` raises ApiError.
        """
        error: ApiError | None = None
        try:
            async with gate:
                if request is whole.exchanges[0]:
                    make_room()
                request.number = self._active.next_number()  # behind the requests that came while it waited here
                await self._runner.run(request)
            if request.relayed_error is not None:
                raise _Relayed(request.relayed_error)
        except ApiError as failure:
            error = failure
            raise
        finally:
            request.task = None  # a task keeps its exception, whose frames keep the request
            whole.breaks_off(request)
            request.end(is_aborted=error is None)
            request.vacate()


class _Relayed(Exception):
    """A choice ended with an error that its worker put into the stream, and that the client has been sent."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


async def _fail(whole: WholeRequest, error: Exception) -> None:
    """End the answer with an error of a choice. Raises it, unless the client has it already."""
    if not isinstance(error, _Relayed):
        raise error
    whole.relayed_error = error.error
    await whole.reply.end()
    whole.end_state = State.FAILED


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """The error that ended all choices. An error for the client is preferred to a bug."""
    return next((one for one in group.exceptions if isinstance(one, ApiError | _Relayed)), group.exceptions[0])
