"""Errors of both ports as OpenAI's clients read them, whoever made them: a route, the framework, or a bug."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from core.protocol.errors import ApiError, BadRequestError, InternalError, NotFoundError
from core.protocol.excerpts import excerpt
from router.upstream.worker_errors import WorkerError

if TYPE_CHECKING:
    from fastapi import FastAPI


def use_our_errors(app: FastAPI) -> None:
    """Have every error answered in OpenAI's shape, the framework's own too."""

    @app.exception_handler(ApiError)
    async def own(_: Request, error: ApiError) -> Response:
        return _answer(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":  # its place is an offset in the text
            return _answer(BadRequestError("We could not parse the JSON body of your request.", code="invalid_json"))
        where = excerpt(".".join(str(part) for part in first["loc"] if part != "body"))
        message = first["msg"].removeprefix("Value error, ")
        return _answer(BadRequestError(f"{message}.", param=where or None, code="invalid_value"))

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, ApiError):  # what the framework met when it read the body
            return _answer(error.__cause__)
        if error.status_code == 404:
            return _answer(NotFoundError(f"Unknown path: {_asked(request)}", code="unknown_url"))
        failure = WorkerError(error.status_code, {"message": str(error.detail), "type": "invalid_request_error"})
        failure.code = "method_not_allowed" if error.status_code == 405 else None
        return _answer(failure, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def bug(request: Request, _: Exception) -> Response:
        # Starlette raises the exception again once this is sent, and whoever called logs it.
        return _answer(InternalError(f"The router failed on {_asked(request)}."))


def _asked(request: Request) -> str:
    return excerpt(f"{request.method} {request.scope['path']}")


def _answer(error: ApiError, headers: dict[str, str] | None = None) -> Response:
    if error.retry_after_s is not None:
        headers = {**(headers or {}), "retry-after": str(max(1, round(error.retry_after_s)))}
    return JSONResponse(error.body(), status_code=error.status, headers=headers)
