"""Requests with a body (``POST /v1/completions`` and so on), from their heads to their ends, without ASGI.

There is one task for each request, from the moment in which its whole body is here. No framework code runs for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING

from baton_serve.core.net.access.unguarded import check_local
from baton_serve.core.net.deadlines import Deadlines
from baton_serve.core.net.served.body import too_late
from baton_serve.core.process.tracebacks import forget_frames
from baton_serve.core.protocol.choice import HEADER as CHOICE_HEADER
from baton_serve.core.protocol.choice import Choice, choice_in
from baton_serve.core.protocol.client_key import HEADER as CLIENT_HEADER
from baton_serve.core.protocol.client_key import client_in
from baton_serve.core.protocol.errors import ApiError, InternalError, UnavailableError, out_of_memory
from baton_serve.core.protocol.id_syntax import REQUEST_ID
from baton_serve.workers.server.client import Client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from baton_serve.core.net.access.hosts import Hosts
    from baton_serve.core.net.served.body import BodyReader
    from baton_serve.core.net.served.call import HttpCall
    from baton_serve.workers.server.access import Access

    #: Answers a body of the requests for one path. Raises ApiError, maybe after the answer has begun.
    Endpoint = Callable[[bytes, Client, "Asked"], Awaitable[None]]

logger = logging.getLogger(__name__)

_CHOICE = CHOICE_HEADER.encode()
_CLIENT = CLIENT_HEADER.encode()


class Asked:
    """What the headers of a request say."""

    __slots__ = ("choice", "headers", "request_id")

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        """``headers`` have lower-case names."""
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        #: The id that the router or the client has sent, or a new one.
        self.request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        choice = headers.get(_CHOICE)
        #: The choice that a router names; None: the request has only one.
        self.choice: Choice | None = None if choice is None else choice_in(choice.decode("latin-1"))
        self.headers = headers

    @property
    def client(self) -> str:
        """The key of the client that a router names; empty: it names none."""
        return client_in(self.headers.get(_CLIENT))


class _Request:
    """One request. ``num_bytes`` of its body count in the budget."""

    __slots__ = ("asked", "client", "num_bytes", "task")

    def __init__(self, call: HttpCall) -> None:
        self.asked = Asked(call.headers)
        self.client = Client(call, self.asked.request_id)
        self.num_bytes = 0
        #: Set when its body is whole.
        self.task: asyncio.Task[None] | None = None


class WorkerCalls:
    """Implements ``Calls`` of the public port.

    If there is an internal token, only the router may call. A failure is answered with a status before the first byte
    of the answer, and with an error event after that byte. If the client leaves, the endpoint is cancelled.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        access: Access,
        bodies: BodyReader,
        body_timeout_s: float,
        hosts: Hosts | None,
    ) -> None:
        """``endpoints`` by their paths. ``hosts``: what a port without a token is called, see ``check_local``."""
        self.urls = frozenset(path.encode() for path in endpoints)
        self._endpoints = endpoints
        self._access = access
        self._bodies = bodies
        self._hosts = hosts
        self._loop = asyncio.get_running_loop()
        self._requests: dict[HttpCall, _Request] = {}
        #: Calls whose bodies did not come together with their heads.
        self._waiting: Deadlines[HttpCall] = Deadlines(
            self._loop, body_timeout_s, lambda call: self._refuse(call, too_late())
        )

    def begin(self, call: HttpCall) -> None:
        self._requests[call] = _Request(call)
        try:
            if self._hosts is not None:
                check_local(self._hosts, call.headers)
            self._access.check_router(call.headers)
            self._bodies.check_announced(call.headers)
        except ApiError as error:
            self._refuse(call, error)

    def wait(self, call: HttpCall) -> None:
        self._waiting.add(call)

    def took(self, call: HttpCall, num_bytes: int) -> None:
        request = self._requests[call]
        try:
            self._bodies.take(request.num_bytes, num_bytes)
        except ApiError as error:
            self._refuse(call, error)
        else:
            request.num_bytes += num_bytes

    def serve(self, call: HttpCall) -> None:
        self._waiting.discard(call)
        call.leave_to_deadline()  # the router enforces the deadline: its client may read slowly
        request = self._requests[call]
        request.task = task = self._loop.create_task(self._run(call, request))
        call.track(task)
        # Not at the end of the task's work: it may be cancelled before its first step.
        task.add_done_callback(partial(self._ended, call))

    def gone(self, call: HttpCall) -> None:
        request = self._requests.get(call)
        if request is None:
            return
        if request.task is None:
            self._forget(call)
        else:
            request.task.cancel("the client left")

    async def _run(self, call: HttpCall, request: _Request) -> None:
        asked, client = request.asked, request.client
        try:
            await self._endpoints[call.path](call.body(), client, asked)
        except ApiError as error:
            forget_frames(error)
            if error.status >= 500:
                logger.warning("request %s: %s", asked.request_id, error.message)
            client.send_error(error)
        except MemoryError as error:
            forget_frames(error)
            logger.error("request %s found no memory", asked.request_id)
            client.send_error(out_of_memory("worker"))
        except asyncio.CancelledError as cancelled:
            forget_frames(cancelled)
            if not client.gone:  # the port stops
                client.send_error(UnavailableError("The worker is shutting down.", code="shutting_down"))
            raise
        except Exception as mistake:
            logger.exception("request %s: a mistake of ours", asked.request_id)
            forget_frames(mistake)
            client.send_error(InternalError("The worker made a mistake; its log says more."))

    def _ended(self, call: HttpCall, task: asyncio.Task[None]) -> None:
        request = self._requests[call]
        request.task = None  # which keeps the exception that ended it, and so the request
        self._forget(call)
        call.untrack(task)
        if request.client.gone:
            logger.debug("request %s: the connection ended before the answer did", request.asked.request_id)

    def _refuse(self, call: HttpCall, error: ApiError) -> None:
        """Answer a request that never ran. If its body was not read to the end, the connection is closed."""
        client = self._requests[call].client
        self._forget(call)
        client.send_error(error)

    def _forget(self, call: HttpCall) -> None:
        call.drop_body()
        self._bodies.budget.give_back(self._requests.pop(call).num_bytes)
        self._waiting.discard(call)
