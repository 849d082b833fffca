"""The life of a request for several answers: each choice goes its own way through the steps, and all end together."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from baton_serve.core.process.tracebacks import forget_frames
from baton_serve.core.protocol.choice import Choice
from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.request.bodies import ClientBody
from baton_serve.router.request.choices.merging import ChoiceEvents
from baton_serve.router.request.choices.plan import choice_id, planned
from baton_serve.router.request.choices.reply import AnswerRoom, ChoiceReply, end_stream, send_whole
from baton_serve.router.request.choices.shared_prefill import ChoiceRole, SharedPrefill
from baton_serve.router.request.choices.whole import WholeRequest
from baton_serve.router.request.states import State
from baton_serve.router.steps.admission import make_room, num_at_once
from baton_serve.router.steps.exit import release
from baton_serve.router.steps.run import new_request, run

if TYPE_CHECKING:
    from baton_serve.core.protocol.openai.choices import Choices
    from baton_serve.router.request.choices.plan import PlannedChoice
    from baton_serve.router.request.client_request import ClientRequest
    from baton_serve.router.request.exchange import Exchange
    from baton_serve.router.request.reply import ClientReply
    from baton_serve.router.services import Services
    from baton_serve.router.steps.shared_answer import SharedAnswer


def new_whole(
    services: Services,
    request_id: str,
    asked: ClientRequest,
    choices: Choices,
    body: ClientBody,
    reply: ClientReply,
    num_bytes: int,
) -> WholeRequest:
    """The record of an admitted request for several answers. ``num_bytes``: size of the client's body."""
    exchanges: list[Exchange] = []
    created, share = int(time.time()), num_bytes // choices.num_computed
    room = AnswerRoom(services.settings.max_answer_bytes)
    shared: SharedPrefill[SharedAnswer] | None = None
    lead: Exchange | None = None
    for one in planned(choices, body.fields):
        if lead is None or one.place % choices.best_of == 0:
            lead, shared = None, _shared(asked, choices)
        role = ChoiceRole(Choice(request_id, one.place, created), shared)
        made = _exchange(services, request_id, asked, one, role, reply, room, share, lead)
        lead = lead or made
        exchanges.append(made)
    return WholeRequest(request_id, asked, choices, reply, exchanges, services.clock)


def _shared(asked: ClientRequest, choices: Choices) -> SharedPrefill[SharedAnswer] | None:
    """What the choices of a prompt share; None: there is only one, or P answers each of them whole."""
    is_shared = choices.best_of > 1 and asked.splits and asked.max_new_tokens != 1
    return SharedPrefill(choices.best_of) if is_shared else None


def _exchange(
    services: Services,
    request_id: str,
    asked: ClientRequest,
    one: PlannedChoice,
    role: ChoiceRole,
    reply: ClientReply,
    room: AnswerRoom,
    num_bytes: int,
    lead: Exchange | None,
) -> Exchange:
    """``lead``: a choice of the same prompt; None: this is its first."""
    events = ChoiceEvents(role.choice, "chatcmpl-" if asked.chat else "cmpl-")
    own = ChoiceReply(reply, events, room, role)
    body = ClientBody(one.fields, None if lead is None else lead.body)
    prompt = None if lead is None else lead.prompt
    made = new_request(services, choice_id(request_id, one.place), asked, body, own, num_bytes, prompt)
    made.choice = role
    return made


async def run_choices(services: Services, whole: WholeRequest) -> None:
    """Run all choices until the client has everything. The first error ends all of them. Raises ApiError."""
    gate = asyncio.Semaphore(num_at_once(services, whole.asked))
    try:
        async with asyncio.TaskGroup() as tasks:
            for request in whole.exchanges:
                request.task = tasks.create_task(_run(services, whole, request, gate))
    except ExceptionGroup as group:
        first = _first(group)
        if isinstance(first, ApiError | _Relayed):  # a mistake of ours is logged with its traceback
            forget_frames(group)
        await _fail(whole, first)
        return
    replies = [request.reply for request in whole.exchanges if isinstance(request.reply, ChoiceReply)]
    asked, choices = whole.asked, whole.choices
    if asked.stream:
        await end_stream(whole.reply, choices, replies, shows_usage=asked.include_usage)
    else:
        await send_whole(whole.reply, choices, replies, shows_logprobs=asked.logprobs)
    whole.end_state = State.DONE


async def _run(services: Services, whole: WholeRequest, request: Exchange, gate: asyncio.Semaphore) -> None:
    error: ApiError | None = None
    try:
        async with gate:
            if request is whole.exchanges[0]:
                _make_room(services, request)
            request.number = services.active.next_number()  # behind the requests that came while it waited here
            await run(services, request)
        if request.relayed_error is not None:
            raise _Relayed(request.relayed_error)
    except ApiError as failure:
        error = failure
        raise
    finally:
        request.task = None  # which keeps the exception that ends it, and so the request
        whole.breaks_off(request)
        release(request, error)


def _make_room(services: Services, first: Exchange) -> None:
    """Make room for all answers, in the step in which the first takes its place: the others do so right after it.

    So a burst of such requests does not overfill the queue. Raises ApiError.
    """
    asked = first.asked
    num = num_at_once(services, asked)
    make_room(services, asked.model, asked.priority, num * first.num_bytes, num)


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
    """The error that ended all: what the client is told or has been told if there is that, else a mistake of ours."""
    return next((one for one in group.exceptions if isinstance(one, ApiError | _Relayed)), group.exceptions[0])
