"""The hot path: all that workers answer (``POST /v1/chat/completions`` and so on), as raw ASGI before the FastAPI app.

A framework's routing, dependency and response machinery costs more than everything else that the router does for a
request; the rest of the API (``app.py``) keeps the framework.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from typing import TYPE_CHECKING

from core.net.served.body import Body, BodyReader, ClientGoneError
from core.net.served.connection import DROP, HAS_DEADLINE
from core.protocol.errors import (
    ApiError,
    BadRequestError,
    InternalError,
    PermissionDeniedError,
    UnavailableError,
)
from core.protocol.excerpts import excerpt
from core.protocol.openai.json_body import parse_body
from core.protocol.router import new_request_id
from router.edge.body_limits import SMALL
from router.edge.cors import answer_preflight, is_preflight
from router.edge.doors import Doors, is_api
from router.queue.priorities import HEADER
from router.request.bodies import ClientBody
from router.request.client_id import client_id
from router.request.endpoints import ENDPOINTS, MESSAGES
from router.request.reply import ClientReply
from router.request.snapshot import facts_of
from router.request.validated import PATHS, validated, with_priority
from router.steps.admission import check_queue, check_requests, make_room
from router.steps.exit import ClientGone, settle
from router.steps.run import new_request, run
from router.tracing.setup import set_up

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from router.edge.auth import AdminKeys, BearerKeys
    from router.request.exchange import Exchange
    from router.services import Services
    from router.tracing.provider import Tracing

log = logging.getLogger("baton.router")

_PRIORITY = HEADER.encode()


class Front:
    """The whole ASGI application: hot routes here, everything else in ``app``."""

    def __init__(self, services: Services, keys: BearerKeys, admin_keys: AdminKeys, app: ASGIApp) -> None:
        self._services = services
        self._keys = keys
        self._admin_keys = admin_keys
        self._app = app
        self._doors = Doors(services.settings)
        self._bodies = BodyReader(services.settings.max_body_bytes, services.body_budget)
        self._limits = services.settings.body_limits
        self.closing = False
        self._scheme = "https" if services.settings.speaks_tls else "http"
        self._tracing: Tracing | None = None
        tracing = set_up(os.environ)
        if tracing is not None:
            self.trace_with(tracing)

    def trace_with(self, tracing: Tracing) -> None:
        """Trace every request from now on, and pass the trace on to workers."""
        self._tracing = tracing

    def close(self) -> None:
        """Refuse new requests, and requests whose bodies are not complete yet."""
        self.closing = True
        self._bodies.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path, headers = scope["method"], scope["path"], dict(scope["headers"])
        if self._doors.cors and is_api(path):
            send = self._doors.cors.opened(send, headers.get(b"origin"))
        try:
            self._doors.check(method, path, headers)
        except PermissionDeniedError as error:
            await self._refuse(self._reply(scope, headers, send), error)
            return
        if method == "POST" and path in PATHS:
            await self._serve(path, scope, headers, receive, send)
        elif self._doors.cors and is_api(path) and is_preflight(method, headers):
            await answer_preflight(send, self._doors.cors.preflight(headers))
        else:
            await self._pass_on(scope, headers, receive, send)

    def _reply(self, scope: Scope, headers: dict[bytes, bytes], send: Send) -> ClientReply:
        return ClientReply(send, new_request_id(self._services.router_id), scope["state"][DROP], client_id(headers))

    async def _pass_on(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        """Pass a call to the framework after checking its key. The body is read only if the route takes one."""
        try:
            if scope["path"].startswith("/admin"):
                self._admin_keys.check(headers.get(b"authorization"))
            elif is_api(scope["path"]):
                self._keys.check(headers.get(b"authorization"))
        except ApiError as error:
            await self._refuse(self._reply(scope, headers, send), error)
            return
        with Body(self._bodies) as body:
            timeout_s = self._services.settings.body_timeout_s
            receive = body.when_asked(scope["method"], headers, receive, timeout_s, SMALL.check_bytes)
            try:
                await self._app(scope, receive, send)
            except Exception:
                log.exception("%s %s met a bug", scope["method"], excerpt(scope["path"]))
            if body.error is not None:
                self._services.metrics.refused[body.error.status] += 1

    async def _serve(
        self,
        path: str,
        scope: Scope,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
    ) -> None:
        came_s = asyncio.get_running_loop().time()
        request_id = new_request_id(self._services.router_id)
        reply = ClientReply(send, request_id, scope["state"][DROP], client_id(headers))
        with Body(self._bodies) as held:
            try:
                self._keys.check(_key(path, headers))
                _check_content_type(path, headers)
                timeout_s = self._timeout_s(headers)
                priority = self._priority(headers)
                self._admit(priority)
                body_timeout_s = min(timeout_s, self._services.settings.body_timeout_s)
                raw = await held.read(headers, receive, body_timeout_s)
                # Checked again, since reading took time. From here to the list of active requests nothing is awaited.
                self._admit(priority)
                body = parse_body(raw, self._limits)
                asked = with_priority(validated(self._services.pool, path, raw, body), priority, body)
                self._services.pool.route(asked.model)
                make_room(self._services, asked.model, asked.priority, len(raw))
            except ClientGoneError:
                return
            except ApiError as error:
                await self._refuse(reply, error)
                return
            reply.names_events = not asked.ends_with_done
            exchange = new_request(self._services, request_id, asked, ClientBody(body), reply, len(raw))
            if self._tracing is not None:
                facts = facts_of(exchange, exchange.progress.started_s)
                exchange.trace = self._tracing.begin(facts, headers, came_s, self._scheme)
            scope["state"][HAS_DEADLINE]()
            await self._run(exchange, receive, came_s + timeout_s)

    async def _refuse(self, reply: ClientReply, error: ApiError) -> None:
        """Answer a request that never began. If its body was not read to the end, the connection is closed."""
        self._services.metrics.refused[error.status] += 1
        await reply.error(error)

    async def _run(self, request: Exchange, receive: Receive, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        request.task = asyncio.current_task()
        request.timer = loop.call_at(deadline_s, request.deadline)
        self._services.active.add(request)
        watcher = loop.create_task(_watch(request, receive))
        error: ApiError | None = None
        try:
            await run(self._services, request)
        except asyncio.CancelledError:
            if request.stop_error is None:  # the server stops
                error = UnavailableError("The router is shutting down.")
                raise
            if request.task is not None:
                request.task.uncancel()
            error = request.stop_error
        except ApiError as failure:
            error = failure
        except Exception:
            log.exception("request %s met a bug: %r", request.request_id, request)
            error = InternalError("The router failed on this request.")
        finally:
            settle(self._services, request, error)
            watcher.cancel()
        if error is not None and not isinstance(error, ClientGone):
            await request.reply.error(error)

    def _priority(self, headers: dict[bytes, bytes]) -> int | None:
        """The priority that the header names; None without a header: then the body's priority counts."""
        given = headers.get(_PRIORITY)
        return None if given is None else self._services.priorities.number_of(given)

    def _admit(self, priority: int | None) -> None:
        if self.closing:
            raise UnavailableError("The router is shutting down.", code="shutting_down", retry_after_s=1)
        check_queue(self._services, priority)
        check_requests(self._services, len(self._bodies))

    def _timeout_s(self, headers: dict[bytes, bytes]) -> float:
        limit_s = self._services.settings.request_timeout_s
        given = headers.get(b"x-request-timeout")
        if given is None:
            return limit_s
        try:
            seconds = float(given)
        except ValueError:
            seconds = math.nan
        if not (math.isfinite(seconds) and seconds > 0):
            raise BadRequestError(
                "The header 'x-request-timeout' must be a positive number of seconds.",
                param="x-request-timeout",
                code="invalid_value",
            )
        return min(seconds, limit_s)


def _key(path: str, headers: dict[bytes, bytes]) -> bytes | None:
    """The header with the client's key. Anthropic's clients have one of their own."""
    given = headers.get(b"authorization")
    anthropic = headers.get(b"x-api-key")
    if given is None and anthropic is not None and path.startswith(MESSAGES.path):
        return b"Bearer " + anthropic
    return given


def _check_content_type(path: str, headers: dict[bytes, bytes]) -> None:
    if path in ENDPOINTS and headers.get(b"content-type", b"").strip().lower().startswith(b"multipart/"):
        raise BadRequestError(
            "Only JSON bodies are passed on to workers here, no multipart/form-data.", code="unsupported_content_type"
        )


async def _watch(request: Exchange, receive: Receive) -> None:
    """Wait until the client closes its connection, and end the request then."""
    while (await receive())["type"] != "http.disconnect":
        pass
    request.stop(ClientGone("The client closed the connection."))
