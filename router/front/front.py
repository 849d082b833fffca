"""Checks each request that is not for a worker, and passes it on to the framework (see ``worker_calls``)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from baton_serve.core.net.answers import retry_after, send_whole
from baton_serve.core.net.served.body import Body, BodyReader
from baton_serve.core.protocol.errors import ApiError, PermissionDeniedError
from baton_serve.core.protocol.excerpts import excerpt
from baton_serve.core.protocol.request_ids import new_request_id
from baton_serve.router.edge.body_limits import SMALL
from baton_serve.router.edge.cors import answer_preflight, is_preflight
from baton_serve.router.edge.doors import Doors, is_api
from baton_serve.router.front.worker_calls import WorkerCalls

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from baton_serve.router.edge.auth import AdminKeys, BearerKeys
    from baton_serve.router.parts import Requests
    from baton_serve.router.pool import WorkerPool
    from baton_serve.router.settings import RouterSettings
    from baton_serve.router.steps.intake import Intake
    from baton_serve.router.telemetry.tracing.provider import Tracing

log = logging.getLogger("baton.router")

#: Pages whose answers never end. A HEAD request for one is not served as a GET here, which would not end either.
_ENDLESS = frozenset({"/admin/live"})


class Front:
    """The public port: ``calls`` answers requests for workers, and the rest is ASGI, passed on to ``app``."""

    def __init__(
        self,
        settings: RouterSettings,
        intake: Intake,
        requests: Requests,
        pool: WorkerPool,
        router_id: str,
        keys: BearerKeys,
        admin_keys: AdminKeys,
        app: ASGIApp,
    ) -> None:
        self._body_timeout_s = settings.body_timeout_s
        self._refused = requests.metrics.refused
        self._router_id = router_id
        self._keys = keys
        self._admin_keys = admin_keys
        self._app = app
        self._doors = Doors(settings)
        self._bodies = BodyReader(settings.max_body_bytes, intake.body_budget)
        self.calls = WorkerCalls(settings, intake, requests, pool, router_id, keys, self._doors, self._bodies)

    @property
    def closing(self) -> bool:
        """Whether new requests are refused."""
        return self.calls.closing

    def trace_with(self, tracing: Tracing) -> None:
        """Trace every request from now on, and pass the trace on to workers."""
        self.calls.tracing = tracing

    def close(self) -> None:
        """Refuse new requests, and requests whose bodies are not complete yet."""
        self.calls.close()
        self._bodies.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD" and scope["path"] not in _ENDLESS:
            # Every page that has GET has HEAD (RFC 9110, 9.1). The port knows that it was HEAD, and sends no body.
            scope = {**scope, "method": "GET"}
        method, path, headers = scope["method"], scope["path"], dict(scope["headers"])
        if self._doors.cors and is_api(path):
            send = self._doors.cors.opened(send, headers.get(b"origin"))
        try:
            self._doors.check(method, path, headers)
        except PermissionDeniedError as error:
            await self._refuse(send, error)
            return
        if self._doors.cors and is_api(path) and is_preflight(method, headers):
            await answer_preflight(send, self._doors.cors.preflight(headers))
        else:
            await self._pass_on(scope, headers, receive, send)

    async def _pass_on(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        """Pass a request to the framework after checking its key. The body is read only if the route takes one."""
        try:
            if scope["path"].startswith("/admin"):
                self._admin_keys.check(headers.get(b"authorization"))
            elif is_api(scope["path"]):
                self._keys.check(headers.get(b"authorization"))
        except ApiError as error:
            await self._refuse(send, error)
            return
        with Body(self._bodies) as body:
            receive = body.when_asked(scope["method"], headers, receive, self._body_timeout_s, SMALL.check_bytes)
            try:
                await self._app(scope, receive, send)
            except Exception:
                log.exception("%s %s met a bug", scope["method"], excerpt(scope["path"]))
            if body.error is not None:
                self._refused[body.error.status] += 1

    async def _refuse(self, send: Send, error: ApiError) -> None:
        self._refused[error.status] += 1
        request_id = new_request_id(self._router_id)
        headers = ((b"x-request-id", request_id.encode()), *retry_after(error))
        await send_whole(send, error.status, error.to_json(request_id), headers=headers)
