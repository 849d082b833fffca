"""Errors of FastAPI applications as OpenAI's clients read them, whether a route, the framework or a bug made them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from baton_serve.core.net.answers import retry_after
from baton_serve.core.protocol.errors import ApiError


def use_error_pages(
    app: FastAPI,
    *,
    invalid: Callable[[RequestValidationError], ApiError],
    framework: Callable[[Request, HTTPException], ApiError],
    bug: Callable[[Request], ApiError],
) -> None:
    """Answer every error of ``app`` with OpenAI's error object.

    A route raises ApiError. Other errors are converted to an ApiError: a request that is not valid, what the framework
    raises (whose headers stay), and any other exception.
    """

    @app.exception_handler(ApiError)
    async def raised(_: Request, error: ApiError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def is_invalid(_: Request, error: RequestValidationError) -> Response:
        return error_response(invalid(error))

    @app.exception_handler(HTTPException)
    async def of_framework(request: Request, error: HTTPException) -> Response:
        return error_response(framework(request, error), error.headers)

    @app.exception_handler(Exception)
    async def is_bug(request: Request, _: Exception) -> Response:
        # Starlette raises the exception again once this is sent, and its caller logs it.
        return error_response(bug(request))


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """One error as a response."""
    more = {name.decode(): value.decode() for name, value in retry_after(error)}
    return Response(error.to_json(), error.status, {**(headers or {}), **more}, media_type="application/json")
