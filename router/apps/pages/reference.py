"""``/docs``: the reference of all calls, and ``/openapi.json``, from which it is made.

Swagger UI shows it. Its files come from the package ``fastapi-offline``, so the page works without the internet and
calls no other site. The page needs no key, since it contains nothing secret; ``/openapi.json`` needs an API key if
there are keys, so the page asks for one.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, StreamingResponse

from baton_serve.router.apps.pages.calls import described_calls, with_models
from baton_serve.router.edge.auth import BearerKeys
from baton_serve.router.edge.doors import is_api
from baton_serve.router.edge.files import add_file, headers, media_type, packaged

_OURS = {"/docs": "docs.html", "/docs/docs.js": "docs.js", "/docs/docs.css": "docs.css"}
_SWAGGER = {f"/docs/{name}": name for name in ("swagger-ui-bundle.js", "swagger-ui.css")}
#: Swagger UI has images in its style sheet, and styles in its script.
_POLICY = headers(script="'self'", style="'self' 'unsafe-inline'", img="'self' data:", connect="'self'")
_DAY_S = 86400
#: Files are sent in pieces: for a client that does not read, only one piece waits in memory.
_PIECE_BYTES = 1 << 16


def reference_routes(
    app: FastAPI, keys: BearerKeys, models: Callable[[], list[str]], *, has_keys: bool, has_admin_token: bool
) -> APIRouter:
    """The routes of the page, its files and ``/openapi.json``. ``models``: the names of those that are served now."""
    api = APIRouter()
    for path, name in _OURS.items():
        add_file(api, path, name, packaged("baton_serve.router.apps.pages", "files", name), _POLICY)
    for path, name in _SWAGGER.items():
        _add_swagger(api, path, name)

    @functools.cache
    def described() -> dict[str, Any]:
        """All routes, made when they are asked for first."""
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            tags=app.openapi_tags,
            routes=[*described_calls().routes, *app.routes],
        )
        return _with_keys(_without_enums_texts(document), has_keys=has_keys, has_admin_token=has_admin_token)

    @api.get("/openapi.json", dependencies=[Depends(keys.guard)], include_in_schema=False)
    async def document() -> Response:
        return JSONResponse(with_models(described(), models()))

    return api


def _without_enums_texts(document: dict[str, Any]) -> dict[str, Any]:
    """Without the docstrings of enums: a compiled one has a filler there. What its values mean, its fields say."""
    for schema in document["components"]["schemas"].values():
        if "enum" in schema:
            schema.pop("description", None)
    return document


def _with_keys(document: dict[str, Any], *, has_keys: bool, has_admin_token: bool) -> dict[str, Any]:
    """Note in the document which calls need which key, for the keys that this router has."""
    needed = (("api_key", has_keys, is_api), ("admin_token", has_admin_token, _is_admin))
    for name, is_needed, guards in needed:
        if not is_needed:
            continue
        document["components"].setdefault("securitySchemes", {})[name] = {"type": "http", "scheme": "bearer"}
        for path, operations in document["paths"].items():
            if guards(path):
                for operation in operations.values():
                    operation["security"] = [{name: []}]
    return document


def _is_admin(path: str) -> bool:
    return path.startswith("/admin/")


def _add_swagger(api: APIRouter, path: str, name: str) -> None:
    async def file(_: Request) -> Response:
        # Read at the first request, since most routers never show the page.
        content = packaged("fastapi_offline", "static", name)
        about = {"content-length": str(len(content)), "cache-control": f"max-age={_DAY_S}"}
        return StreamingResponse(_pieces(content), media_type=media_type(name), headers=_POLICY | about)

    api.add_route(path, file, include_in_schema=False)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), _PIECE_BYTES):
        yield content[at : at + _PIECE_BYTES]
