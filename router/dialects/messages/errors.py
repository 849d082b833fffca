"""Errors as Anthropic's clients read them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from baton_serve.core.protocol.errors import ApiError

#: Anthropic's types, by status. Of any other status a client's mistake is an invalid request.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    499: "api_error",
    504: "timeout_error",
}


class ErrorObject(BaseModel):
    """What went wrong."""

    type: str
    message: str


class MessagesError(BaseModel):
    """Every error of these paths, as Anthropic's clients read it."""

    type: str = Field(description="Always ``error``.")
    error: ErrorObject
    request_id: str = Field(description="As in the headers x-request-id and request-id.")


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """The error as an object. The message names the parameter at fault, because there is no other place for it."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    names_it = error.param is None or error.param in error.message
    message = error.message if names_it else f"{error.param}: {error.message}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def error_answer(error: ApiError, request_id: str) -> bytes:
    """The error as the whole answer."""
    return orjson.dumps(error_body(error, request_id))
