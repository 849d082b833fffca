"""Error answers on both ports if no route has answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.core.net.error_pages import use_error_pages
from baton_serve.core.protocol.errors import ApiError, BadRequestError, InternalError, NotFoundError
from baton_serve.core.protocol.excerpts import excerpt
from baton_serve.router.upstream.worker_errors import WorkerError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException


def use_our_errors(app: FastAPI) -> None:
    """Answer every error with OpenAI's error object, which names the path or field concerned."""
    use_error_pages(app, invalid=_invalid, framework=_framework, bug=_bug)


def _invalid(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":  # its ``loc`` is only an offset in the text
        return BadRequestError("We could not parse the JSON body of your request.", code="invalid_json")
    if first["type"] == "missing" and first["loc"] == ("body",):
        return BadRequestError("This request needs a JSON object as its body.", code="invalid_value")
    where = excerpt(".".join(str(part) for part in first["loc"] if part != "body"))
    message = first["msg"].removeprefix("Value error, ")
    return BadRequestError(f"{message}.", param=where or None, code="invalid_value")


def _framework(request: Request, error: HTTPException) -> ApiError:
    if isinstance(error.__cause__, ApiError):  # raised while the framework read the body
        return error.__cause__
    if error.status_code == 404:
        return NotFoundError(f"Unknown path: {_asked(request)}", code="unknown_url")
    failure = WorkerError(error.status_code, {"message": str(error.detail), "type": "invalid_request_error"})
    failure.code = "method_not_allowed" if error.status_code == 405 else None
    return failure


def _bug(request: Request) -> ApiError:
    return InternalError(f"The router failed on {_asked(request)}.")


def _asked(request: Request) -> str:
    return excerpt(f"{request.method} {request.scope['path']}")
