"""The error answers of all pages and unknown paths; ``calls`` answers those of requests with a body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.core.net.error_pages import use_error_pages
from baton_serve.core.protocol.errors import ApiError, BadRequestError, InternalError, NotFoundError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException


def use_our_errors(app: FastAPI) -> None:
    """Answer every error with OpenAI's error object."""
    use_error_pages(app, invalid=_invalid, framework=_framework, bug=_bug)


def _invalid(_: RequestValidationError) -> ApiError:
    return BadRequestError("The request is not valid.", code="invalid_value")


def _framework(_: Request, error: HTTPException) -> ApiError:
    if error.status_code == 404:
        return NotFoundError("There is nothing at this path.", code="not_found")
    failure = BadRequestError(error.detail)
    failure.status = error.status_code
    return failure


def _bug(_: Request) -> ApiError:
    return InternalError("The worker made a mistake; its log says more.")
