"""A port without a token, which answers neither pages of other sites nor requests with another name in ``Host``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from baton_serve.core.net.access.hosts import Hosts, is_from_other_site
from baton_serve.core.net.answers import send_whole
from baton_serve.core.protocol.errors import ApiError, PermissionDeniedError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class Unguarded:
    """``app``, but requests that ``check_local`` refuses get a 403, and their body is not read."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                check_local(self._hosts, dict(scope["headers"]))
            except ApiError as error:
                # The rest of the unread body ends with the connection.
                await send_whole(send, error.status, error.to_json(), headers=((b"connection", b"close"),))
                return
        await self._app(scope, receive, send)


def check_local(hosts: Hosts, headers: Mapping[bytes, bytes]) -> None:
    """Raise PermissionDeniedError for a ``Host`` that is not in ``hosts``, and for pages of other sites."""
    hosts.check(headers.get(b"host"))
    if is_from_other_site(headers):
        raise PermissionDeniedError("This port does not answer pages of other sites.", code="other_site")
