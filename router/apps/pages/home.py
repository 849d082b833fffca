"""``/``: what this server is and which paths it has, as a page for browsers and as JSON for programs. And the icon."""

from __future__ import annotations

from html import escape
from string import Template

import msgspec
from fastapi import APIRouter, Request, Response

from baton_serve.core.process.version import version
from baton_serve.router.edge.files import add_file, headers, inline, packaged

#: What is at each path. Paths are relative, so they also work behind a proxy that serves Baton under a prefix.
PLACES = {
    "v1": "the API, as OpenAI's: point a client's base URL here",
    "docs": "the reference of all calls, to try them out",
    "dashboard": "requests and workers, live; asks for the admin token where there is one",
    "admin/requests": "the admin API: list, abort, drain",
    "health": "whether this process lives",
    "ready": "whether a model can be served now",
    "metrics": "numbers for Prometheus",
    "openapi.json": "the reference, for programs",
}
_DAY_S = 86400


def home_routes() -> APIRouter:
    """``/`` and ``/favicon.ico``. They reveal only that this is Baton, and its version."""
    api = APIRouter()
    icon, css, html = (
        packaged("baton_serve.router.apps.pages", "files", name) for name in ("icon.svg", "home.css", "home.html")
    )
    style = css.decode()
    page = _page(html.decode(), style)
    policy = headers(style=inline(style), img="'self'")
    about = msgspec.json.format(msgspec.json.encode({"name": "Baton", "version": version(), "paths": PLACES}), indent=2)

    async def home(request: Request) -> Response:
        vary = {"vary": "accept"}
        if "text/html" in request.headers.get("accept", ""):
            return Response(page, media_type="text/html; charset=utf-8", headers=policy | vary)
        return Response(about + b"\n", media_type="application/json", headers=vary)

    api.add_route("/", home, include_in_schema=False)
    add_file(api, "/favicon.ico", "icon.svg", icon, headers() | {"cache-control": f"max-age={_DAY_S}"})
    return api


def _page(template: str, style: str) -> str:
    rows = "\n".join(f"  <li>{_place(path)} <span>{escape(says)}</span></li>" for path, says in PLACES.items())
    return Template(template).substitute(style=style, version=escape(version()), places=rows)


def _place(path: str) -> str:
    """A link, unless there is no page at the path itself."""
    return f"<b>/{path}</b>" if path == "v1" else f'<a href="{path}">/{path}</a>'
