"""Serves the files of pages, and tells browsers what Baton's pages may load, and that other sites may not frame them.

Plain routes: FastAPI's take milliseconds each to make.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib import resources

from fastapi import APIRouter, Request, Response

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def add_file(api: APIRouter, path: str, name: str, content: bytes, headers: Mapping[str, str]) -> None:
    """Serve a file at a path. ``name`` tells its type. A browser that has it already is told so."""
    of_file = {**headers, "etag": f'"{sha256(content).hexdigest()[:16]}"'}

    async def file(request: Request) -> Response:
        if of_file["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=of_file)
        return Response(content, media_type=media_type(name), headers=of_file)

    api.add_route(path, file, include_in_schema=False)


@cache
def packaged(package: str, folder: str, name: str) -> bytes:
    """A file that comes with a package."""
    return resources.files(package).joinpath(folder, name).read_bytes()


def media_type(name: str) -> str:
    """The media type for the end of a file's name."""
    found = _TYPES[name.rpartition(".")[2]]
    return found if found.startswith("image/") else f"{found}; charset=utf-8"


def headers(**sources: str) -> dict[str, str]:
    """Headers of a page, a script or a style sheet. ``sources`` are directives of the policy: ``script="'self'"``.

    Kinds of content that are not named may not be loaded, and no page of another site may frame this one.
    """
    allowed = "".join(f"{name}-src {source}; " for name, source in sources.items())
    return {
        "content-security-policy": (
            f"default-src 'none'; {allowed}base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def inline(text: str) -> str:
    """The policy source that allows exactly this inline style or script."""
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
