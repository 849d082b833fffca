"""Sends requests to the hot endpoints straight there, and all others to the framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send


class HotEndpoints:
    """An ASGI application: a ``POST`` to one of the paths of ``endpoints`` goes there, all else to ``rest``.

    The framework's routes and middleware wrap each request, and each part of an answer that it sends.
    """

    def __init__(self, endpoints: Mapping[str, ASGIApp], rest: ASGIApp) -> None:
        self._endpoints = endpoints
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._rest
        if scope["type"] == "http" and scope["method"] == "POST":
            app = self._endpoints.get(scope["path"], app)
        await app(scope, receive, send)
