"""The routes of the page and its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from baton_serve.router.dashboard.history import NUM_STEPS
from baton_serve.router.dashboard.live import LiveStream
from baton_serve.router.dashboard.share import local_share
from baton_serve.router.edge.files import add_file, headers, packaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_serve.router.dashboard.live import LiveSnapshots
    from baton_serve.router.dashboard.recorder import HistoryRecorder
    from baton_serve.router.edge.auth import AdminKeys
    from baton_serve.router.parts import Requests, Workers

_SCRIPTS = (
    "ask.js",
    "axis.js",
    "dashboard.js",
    "details.js",
    "dom.js",
    "ended.js",
    "flow.js",
    "format.js",
    "health.js",
    "jump.js",
    "orders.js",
    "plots.js",
    "requests.js",
    "shorter.js",
    "stream.js",
    "stuck.js",
    "workers.js",
)
#: The page's files, by path. They contain no secrets, so they need no token; the stream does.
FILES = {
    "/dashboard": "dashboard.html",
    "/dashboard/dashboard.css": "dashboard.css",
    **{f"/dashboard/{name}": name for name in _SCRIPTS},
}
HEADERS = headers(script="'self'", style="'self'", connect="'self'")


def dashboard_router(snapshots: LiveSnapshots, keys: AdminKeys, closing: Callable[[], bool]) -> APIRouter:
    """``/admin/live`` and ``/dashboard``. ``closing`` returns True when the router stops, so streams have to end."""
    api = APIRouter()

    @api.get(
        "/admin/live", tags=["admin"], dependencies=[Depends(keys.guard)], status_code=200, response_class=LiveStream
    )
    async def live() -> Response:
        """Server-sent events, each a whole snapshot: workers, requests, queues, the last ten minutes."""
        return LiveStream(snapshots, closing)

    for path, name in FILES.items():
        add_file(api, path, name, page_file(name), HEADERS)
    api.add_route("/dashboard/", _slash, include_in_schema=False)
    return api


def live_share_routes(workers: Workers, requests: Requests, recorder: HistoryRecorder) -> APIRouter:
    """``/live`` under ``/internal``, for the internal port: this router's share of another router's dashboard."""
    api = APIRouter()

    @api.get("/live")
    async def live(num_steps: Annotated[int, Query(ge=0, le=NUM_STEPS)] = 0) -> Response:
        """The present state of this router, and its newest steps."""
        share = local_share(workers, requests, recorder, num_steps)
        return Response(msgspec.json.encode(share), media_type="application/json")

    return api


async def _slash(_: Request) -> Response:
    """Redirect relatively, which keeps the host that the browser uses, and any path that a proxy adds."""
    return Response(status_code=308, headers={"location": "../dashboard"})


def page_file(name: str) -> bytes:
    """One file of the page."""
    return packaged("baton_serve.router.dashboard", "page", name)
