"""The routes of the page and its stream."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources

from fastapi import APIRouter, Depends, Request, Response

from baton_serve.router.dashboard.live import LiveSnapshots, LiveStream
from baton_serve.router.edge.auth import AdminKeys
from baton_serve.router.edge.files import add_file, headers, packaged

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

    for path, name in page_files().items():
        add_file(api, path, name, page_file(name), HEADERS)
    api.add_route("/dashboard/", _slash, include_in_schema=False)
    return api


async def _slash(_: Request) -> Response:
    """Redirect relatively, which keeps the host that the browser uses, and any path that a proxy adds."""
    return Response(status_code=308, headers={"location": "../dashboard"})


def page_files() -> dict[str, str]:
    """The page's files, by path. They contain no secrets, so they need no token; the stream does."""
    names = [file.name for file in resources.files("baton_serve.router.dashboard").joinpath("page").iterdir()]
    scripts = {f"/dashboard/{name}": name for name in names if name.endswith(".js")}
    return {"/dashboard": "dashboard.html", "/dashboard/dashboard.css": "dashboard.css"} | scripts


def page_file(name: str) -> bytes:
    """One file of the page."""
    return packaged("baton_serve.router.dashboard", "page", name)
