"""The hot path: requests for workers (``POST /v1/chat/completions`` and so on), from their head to their end.

The body is validated when its last bytes come. Until then a request has no task, no ASGI scope and no timer of its own.
Then a task calls P. In a burst only a few of these tasks begin in each turn of the loop. docs/hot-path.md says what is
left out.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Final

from baton_serve.core.net.deadlines import Deadlines
from baton_serve.core.net.served.body import shutting_down, too_late
from baton_serve.core.process.tracebacks import forget_frames
from baton_serve.core.process.turns import Turns
from baton_serve.core.protocol.client_key import client_key, network_of
from baton_serve.core.protocol.errors import (
    ApiError,
    InternalError,
    UnavailableError,
    out_of_memory,
)
from baton_serve.core.protocol.openai.json_body import parse_body
from baton_serve.core.protocol.request_ids import new_request_id
from baton_serve.core.protocol.token_keys import clients_key
from baton_serve.router.dialects.known import DIALECTS, translated
from baton_serve.router.dialects.reply import refuse, reply_to
from baton_serve.router.front.head import check_content_type, key_in, priority_in, timeout_s
from baton_serve.router.request.bodies import ClientBody
from baton_serve.router.request.choices.whole import WholeRequest
from baton_serve.router.request.exchange import Exchange
from baton_serve.router.request.validated import PATHS, may_have_form, set_priority, validated
from baton_serve.router.steps.admission import num_at_once
from baton_serve.router.steps.failures import ClientGone
from baton_serve.router.telemetry.tracing.setup import set_up

if TYPE_CHECKING:
    from baton_serve.core.net.served.body import BodyReader
    from baton_serve.core.net.served.call import HttpCall
    from baton_serve.router.edge.auth import BearerKeys
    from baton_serve.router.edge.doors import Doors
    from baton_serve.router.parts import Requests
    from baton_serve.router.pool import WorkerPool
    from baton_serve.router.request.client_request import ClientRequest
    from baton_serve.router.request.exchange import LiveRequest
    from baton_serve.router.request.reply import ClientReply
    from baton_serve.router.settings import RouterSettings
    from baton_serve.router.steps.intake import Intake
    from baton_serve.router.telemetry.tracing.provider import Tracing

log = logging.getLogger("baton.router")

#: Most requests that are started in one turn of the loop: the first step of each, to call P, takes 0.1 ms and more. So
#: the first requests of a burst reach D, and streams go on, while the router starts the others. P answers the first
#: ones before the last ones need connections to it. A request for several answers counts as so many.
MOST_IN_A_TURN: Final = 16


class _Arrival:
    """What is known of a request before its body is complete."""

    __slots__ = ("came_s", "exchange", "num_bytes", "priority", "request_id", "timer")

    def __init__(self, request_id: str, came_s: float) -> None:
        self.request_id = request_id
        self.came_s = came_s
        #: Bytes of its body that count in the budget.
        self.num_bytes = 0
        self.priority: int | None = None
        #: Runs if the client wants a deadline of its own.
        self.timer: asyncio.TimerHandle | None = None
        #: The record of the request, once its body is complete.
        self.exchange: LiveRequest | None = None


class _Rules:
    """The settings that each request is checked against: a setting is slow to look at."""

    __slots__ = ("client_priority", "clients_key", "has_keys", "limits", "scheme", "timeout_s")

    def __init__(self, settings: RouterSettings) -> None:
        self.limits = settings.body_limits
        self.timeout_s = settings.request_timeout_s
        self.client_priority = settings.client_priority
        self.has_keys = bool(settings.api_keys)
        token = settings.internal_token
        self.clients_key = clients_key("" if token is None else token.get_secret_value())
        self.scheme = "https" if settings.speaks_tls else "http"


class WorkerCalls:
    """Implements ``Calls`` of the port."""

    def __init__(
        self,
        settings: RouterSettings,
        intake: Intake,
        requests: Requests,
        pool: WorkerPool,
        router_id: str,
        keys: BearerKeys,
        doors: Doors,
        bodies: BodyReader,
    ) -> None:
        """``bodies`` reads the bodies of all other requests: both kinds count for the bounds."""
        self.urls = frozenset(path.encode() for path in PATHS)
        self.closing = False
        self.tracing: Tracing | None = set_up(os.environ)
        self._intake = intake
        self._active = requests.active
        self._refused = requests.metrics.refused
        self._pool = pool
        self._router_id = router_id
        self._keys = keys
        self._doors = doors
        self._bodies = bodies
        self._rules = _Rules(settings)
        self._loop = asyncio.get_running_loop()
        self._arrivals: dict[HttpCall, _Arrival] = {}
        self._turns = Turns(MOST_IN_A_TURN, self._start_waiting)
        #: Requests that wait for their turn to be started; oldest first.
        self._starting: deque[tuple[HttpCall, LiveRequest, ClientReply]] = deque()
        #: Calls whose bodies did not come together with their heads.
        self._waiting = Deadlines(self._loop, settings.body_timeout_s, self._late_body)
        self._deadlines = Deadlines(self._loop, self._rules.timeout_s, self._deadline)

    @property
    def num_arriving(self) -> int:
        """Requests of either kind whose bodies are not complete."""
        return len(self._waiting) + len(self._bodies)

    def close(self) -> None:
        """Refuse new requests, and requests whose bodies are not complete yet."""
        self.closing = True
        for call, arrival in list(self._arrivals.items()):
            if arrival.exchange is None:
                self._refuse(call, shutting_down())

    # --- Calls

    def begin(self, call: HttpCall) -> None:
        """Check everything that the head says."""
        arrival = self._arrivals[call] = _Arrival(new_request_id(self._router_id), self._loop.time())
        try:
            asked_s = self._check(call, arrival)
            self._admit(arrival.priority)
            self._bodies.check_announced(call.headers)
        except ApiError as error:
            self._refuse(call, error)
            return
        if asked_s == self._rules.timeout_s:
            self._deadlines.add(call)
        else:
            arrival.timer = self._loop.call_at(arrival.came_s + asked_s, self._deadline, call)

    def wait(self, call: HttpCall) -> None:
        """Give the body its time."""
        self._waiting.add(call)

    def took(self, call: HttpCall, num_bytes: int) -> None:
        """Count the bytes of the body."""
        arrival = self._arrivals[call]
        try:
            self._bodies.take(arrival.num_bytes, num_bytes)
        except ApiError as error:
            self._refuse(call, error)
        else:
            arrival.num_bytes += num_bytes

    def serve(self, call: HttpCall) -> None:
        """Validate the body, and begin to run the request, or have it wait for its turn."""
        arrival = self._arrivals[call]
        try:
            self._begin(call, arrival)
        except Exception as failure:  # noqa: BLE001 (logged there)
            self._refuse(call, _client_error(failure, arrival.request_id))

    def gone(self, call: HttpCall) -> None:
        """End the request, or what is known of it."""
        arrival = self._arrivals.get(call)
        if arrival is None:
            return
        if arrival.exchange is None:
            self._forget(call)
        else:
            arrival.exchange.stop(ClientGone("The client closed the connection."))

    # --- the request

    def _check(self, call: HttpCall, arrival: _Arrival) -> float:
        """Check the head, except for the length of the body, and note the request's priority. Returns its timeout,
        seconds. Raises ApiError.
        """
        headers, path = call.headers, call.path
        cors = self._doors.cors
        if cors:
            call.more_headers = cors.lines(headers.get(b"origin"))
        self._doors.check("POST", path, headers)
        self._keys.check(key_in(path, headers))
        check_content_type(path, headers)
        seconds = timeout_s(headers, self._rules.timeout_s)
        arrival.priority = priority_in(headers, self._intake.priorities, self._rules.client_priority)
        return seconds

    def _client_identity(self, call: HttpCall) -> bytes:
        """What tells the client from others: its key or, without keys, its address.

        Only the first half of an IPv6 address counts, because one machine may use any second half.
        """
        if self._rules.has_keys:
            return (key_in(call.path, call.headers) or b"").partition(b" ")[2].strip()
        peer = call.transport.get_extra_info("peername")
        return network_of(str(peer[0])) if peer else b""

    def _begin(self, call: HttpCall, arrival: _Arrival) -> None:
        """Raises ApiError."""
        if call in self._waiting:  # time has passed since it was admitted
            self._waiting.discard(call)
            self._admit(arrival.priority)
        raw = call.body()
        body = parse_body(raw, self._rules.limits)
        translation = None
        if call.path in DIALECTS:
            translation = translated(self._pool, call.path, raw, body, arrival.request_id, self._rules.limits)
        if translation is None:
            asked = validated(self._pool, call.path, raw, body)
            if not asked.passed_on:
                self._rules.limits.check_stop(body)
        else:
            asked, body = translation.asked, translation.body
        set_priority(asked, arrival.priority, self._rules.client_priority, body)
        if may_have_form(asked, body):
            asked.client = client_key(self._rules.clients_key, self._client_identity(call))
        route = self._pool.route(asked.model)
        admission = self._intake.admission
        if asked.choices is not None:
            admission.check_choices(asked.choices)
        admission.make_room(route, asked.priority, len(raw), num_at_once(asked, route))
        reply = reply_to(call, arrival.request_id, translation)
        reply.names_events = not asked.ends_with_done
        exchange = self._intake.records.new(arrival.request_id, asked, route, ClientBody(body, len(raw)), reply)
        if self.tracing is not None:
            now_s = self._loop.time()
            trace = self.tracing.begin(exchange.facts(now_s), call.headers, arrival.came_s, self._rules.scheme)
            exchange.trace_with(trace)
        arrival.exchange = exchange
        self._active.add(exchange)
        if self._turns.left:
            self._start(call, exchange, reply)
        else:
            self._starting.append((call, exchange, reply))

    def _start(self, call: HttpCall, request: LiveRequest, reply: ClientReply) -> None:
        # ``take`` first: the next turn then starts and tracks the waiting requests before this task can end. A port
        # that stops waits for all tracked tasks, so it misses no request.
        self._turns.take(_num_answers(request.asked))
        call.track(self._loop.create_task(self._run(call, reply)))

    def _start_waiting(self) -> None:
        while self._starting and self._turns.left:
            self._start(*self._starting.popleft())

    async def _run(self, call: HttpCall, reply: ClientReply) -> None:
        """Run the request, and tell the client if it failed, once nothing of it is left but the error."""
        request = self._arrivals[call].exchange
        assert request is not None, "its body is complete"
        task = request.task = asyncio.current_task(self._loop)
        error = request.stop_error  # it may have been ended before this task's first step
        try:
            if error is None:
                if isinstance(request, Exchange):
                    await self._intake.runner.run(request)
                elif isinstance(request, WholeRequest):
                    await self._intake.choices.run(request)
        except asyncio.CancelledError as cancelled:
            forget_frames(cancelled)
            if request.stop_error is None or task is None:  # the server stops
                error = UnavailableError("The router is shutting down.")
                raise
            task.uncancel()
            error = request.stop_error
        except Exception as failure:  # noqa: BLE001 (logged there)
            error = _client_error(failure, request.request_id)
        finally:
            request.task = None  # a task keeps its exception, whose frames keep the request
            try:
                self._intake.exit.settle(request, error)
            finally:
                request = None  # before its bytes count no more
                self._forget(call)
                call.untrack(task)
        if error is not None and not isinstance(error, ClientGone):
            await reply.error(error)

    def _refuse(self, call: HttpCall, error: ApiError) -> None:
        """Answer a request that never began. If its body was not read to the end, the connection is closed."""
        self._refused[error.status] += 1
        request_id = self._arrivals[call].request_id
        self._forget(call)
        refuse(call, request_id, error)

    def _forget(self, call: HttpCall) -> None:
        arrival = self._arrivals.pop(call)
        arrival.exchange = None
        call.drop_body()
        self._bodies.budget.give_back(arrival.num_bytes)  # only now: nothing keeps the body any more
        self._waiting.discard(call)
        self._deadlines.discard(call)
        if arrival.timer is not None:
            arrival.timer.cancel()

    def _admit(self, priority: int | None) -> None:
        if self.closing:
            raise UnavailableError("The router is shutting down.", code="shutting_down", retry_after_s=1)
        self._intake.admission.check_queue(priority)
        self._intake.admission.check_requests(self.num_arriving)

    def _late_body(self, call: HttpCall) -> None:
        self._refuse(call, too_late())

    def _deadline(self, call: HttpCall) -> None:
        arrival = self._arrivals[call]
        if arrival.exchange is None:
            self._late_body(call)
        else:
            arrival.exchange.deadline()


def _client_error(failure: Exception, request_id: str) -> ApiError:
    """What the client is told of an exception, which is logged unless it is meant for the client."""
    if isinstance(failure, ApiError):
        error = failure
    elif isinstance(failure, MemoryError):
        log.error("request %s found no memory", request_id)
        error = out_of_memory("router")
    else:
        log.exception("request %s met a bug", request_id)
        error = InternalError("The router failed on this request.")
    forget_frames(failure)
    return error


def _num_answers(asked: ClientRequest) -> int:
    return 1 if asked.choices is None else asked.choices.num_computed
