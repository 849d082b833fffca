"""The hot path: ``POST /v1/chat/completions`` and ``/v1/completions`` as raw ASGI in front of the FastAPI app.

A framework's routing, dependency and response machinery costs more than everything else that happens to a request
here; the rest of the API (``app.py``) keeps it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from typing import TYPE_CHECKING, Any

from protocol.errors import (
    ApiError,
    BadRequestError,
    InternalError,
    PayloadTooLargeError,
    RateLimitError,
    UnavailableError,
)
from protocol.openai import ChatRequest, CompletionRequest, parse_json, validate
from router.ask import Ask
from router.exchange import Exchange
from router.exit import ClientGone, settle
from router.legs import LegBodies
from router.reply import Reply

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from router.auth import BearerKeys
    from router.services import Services

log = logging.getLogger("baton.router")

KINDS: dict[str, type[ChatRequest] | type[CompletionRequest]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
}


class Front:
    """The whole ASGI application: hot routes here, everything else in ``app``."""

    def __init__(self, services: Services, keys: BearerKeys, app: ASGIApp) -> None:
        self._services = services
        self._keys = keys
        self._app = app
        self.closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = KINDS.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if kind is None:
            await self._app(scope, receive, send)
        else:
            await self._serve(kind, scope, receive, send)

    async def _serve(
        self, kind: type[ChatRequest] | type[CompletionRequest], scope: Scope, receive: Receive, send: Send
    ) -> None:
        request_id = os.urandom(16).hex()
        reply = Reply(send, request_id)
        try:
            headers: dict[bytes, bytes] = dict(scope["headers"])
            self._keys.check(headers.get(b"authorization"))
            timeout_s = self._timeout_s(headers)
            self._admit()
            raw = await self._read_body(headers, receive)
            body = parse_json(raw)
            ask = _ask(kind, body)
            self._services.pool.route(ask.model)
        except ApiError as error:
            if not isinstance(error, ClientGone):
                self._services.metrics.refused[error.status] += 1
                await reply.error(error)
            return
        if b"x-request-id" in headers:
            log.debug("request %s is the client's %r", request_id, headers[b"x-request-id"][:128])
        exchange = Exchange(self._services, request_id, ask, LegBodies(body), reply, len(raw))
        await self._run(exchange, receive, timeout_s)

    async def _run(self, x: Exchange, receive: Receive, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        x.task = asyncio.current_task()
        x.timer = loop.call_later(timeout_s, x.deadline)
        self._services.active.add(x)
        watcher = loop.create_task(_watch(x, receive))
        error: ApiError | None = None
        try:
            await x.run()
        except asyncio.CancelledError:
            if x.stop_error is None:  # the server ends
                error = UnavailableError("The router is shutting down.")
                raise
            if x.task is not None:
                x.task.uncancel()
            error = x.stop_error
        except ApiError as failure:
            error = failure
        except Exception:
            log.exception("request %s met a bug: %r", x.request_id, x)
            error = InternalError("The router failed on this request.")
        finally:
            settle(x, error)
            watcher.cancel()
        if error is not None and not isinstance(error, ClientGone):
            await x.reply.error(error)

    def _admit(self) -> None:
        services, settings = self._services, self._services.settings
        if self.closing:
            raise UnavailableError("The router is shutting down.", retry_after_s=1)
        if len(services.prefill_queue) + len(services.held_queue) >= settings.max_queue_length:
            raise RateLimitError("Too many requests are waiting.", retry_after_s=1)
        if len(services.active) >= settings.max_requests:
            raise RateLimitError("Too many requests are running.", retry_after_s=1)

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

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        limit = self._services.settings.max_body_bytes
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        total = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("gone while sending")
            part: bytes = message.get("body", b"")
            total += len(part)
            if total > limit:
                raise _too_large(limit)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)


def _ask(kind: type[ChatRequest] | type[CompletionRequest], body: dict[str, Any]) -> Ask:
    # Clients' own are stripped, not refused: some pass on what another router answered.
    body.pop("kv_transfer_params", None)
    if kind is ChatRequest:
        return Ask.of(validate(ChatRequest, body))
    return Ask.of(validate(CompletionRequest, body))


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"The request body is larger than {limit} bytes.")


async def _watch(x: Exchange, receive: Receive) -> None:
    """Wait for the client to go, as an event; ends the request then."""
    while (await receive())["type"] != "http.disconnect":
        pass
    x.stop(ClientGone("The client closed the connection."))
