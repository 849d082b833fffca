"""Where the page and its stream are served."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, Response

from router.dashboard.live import Board, LiveStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.auth import AdminKeys
    from router.services import Services

#: Path to file and type. Nothing secret is in them, so they need no token; the stream does.
FILES = {
    "/dashboard": ("dashboard.html", "text/html; charset=utf-8"),
    "/dashboard/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/dashboard/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def dashboard_router(services: Services, keys: AdminKeys, closing: Callable[[], bool]) -> APIRouter:
    """``/admin/live`` and ``/dashboard``. ``closing``: the router ends, so its streams have to."""
    api = APIRouter()
    board = Board(services)

    @api.get(
        "/admin/live", tags=["admin"], dependencies=[Depends(keys.guard)], status_code=200, response_class=LiveStream
    )
    async def live() -> Response:
        """Server-sent events, each a whole snapshot: workers, requests, queues, the last ten minutes."""
        return LiveStream(board, closing)

    for path, (name, media_type) in FILES.items():
        _add_file(api, path, name, media_type)
    return api


def _add_file(api: APIRouter, path: str, name: str, media_type: str) -> None:
    content = resources.files("router.dashboard").joinpath("page", name).read_bytes()

    @api.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)
