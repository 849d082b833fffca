"""Errors of all pages but the hot endpoints, as OpenAI's error object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from core.protocol.errors import ApiError, BadRequestError, InternalError, NotFoundError
from workers.server.http import reason

if TYPE_CHECKING:
    from fastapi import FastAPI, Request


def use_our_errors(app: FastAPI) -> None:
    """Make the application answer every error with OpenAI's error object."""

    @app.exception_handler(ApiError)
    async def ours(_: Request, error: ApiError) -> Response:
        return respond(error)

    @app.exception_handler(HTTPException)
    async def of_the_framework(_: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return respond(NotFoundError("There is nothing at this path.", code="not_found"))
        return respond(BadRequestError(reason(error.status_code)), error.status_code)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, __: RequestValidationError) -> Response:
        return respond(BadRequestError("The request is not valid.", code="invalid_value"))

    @app.exception_handler(Exception)
    async def bug(_: Request, __: Exception) -> Response:
        return respond(InternalError("The worker made a mistake; its log says more."))


def respond(error: ApiError, status: int | None = None) -> Response:
    """The error as a response; ``status`` replaces the error's own."""
    return Response(error.to_json(), status or error.status, media_type="application/json")
