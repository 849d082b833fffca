"""Errors as OpenAI clients expect them, and the one encoder for them: JSON before the first byte, an SSE event after.

Each class says its status, and the type and the code that clients read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from baton_serve.core.protocol.excerpts import excerpt


class ApiError(Exception):
    """An error with the four fields OpenAI clients read. ``message`` goes to the client: never put a secret there."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init_subclass__(cls, status: int | None = None, type: str | None = None, code: str | None = None) -> None:
        """An argument that is not given keeps the value of the base class."""
        super().__init_subclass__()
        cls.status, cls.type, cls.code = status or cls.status, type or cls.type, code or cls.code

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code

    def body(self, request_id: str = "") -> dict[str, Any]:
        """The error object as OpenAI nests it. Next to it is the id of the request, if it has one: clients print the
        body, not the headers.
        """
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error, "request_id": request_id} if request_id else {"error": error}

    def to_json(self, request_id: str = "") -> bytes:
        """The response body."""
        return msgspec.json.encode(self.body(request_id))

    def to_sse(self, request_id: str = "") -> bytes:
        """The body as one event of an open stream."""
        return b"data: " + self.to_json(request_id) + b"\n\n"


class BadRequestError(ApiError, status=400, type="invalid_request_error"):
    """The client must change the request."""


def invalid_value(param: str, message: str) -> BadRequestError:
    """The error for a parameter that may not have this value, or not together with others."""
    return BadRequestError(message, param=param, code="invalid_value")


class AuthenticationError(ApiError, status=401, type="invalid_request_error", code="invalid_api_key"):
    """The key is missing or wrong."""


class PermissionDeniedError(ApiError, status=403, type="permission_error"):
    """The key is valid but not for this path, or the request's origin is not allowed."""


class NotFoundError(ApiError, status=404, type="invalid_request_error"):
    """No such model, request or path."""


def no_such_model(model: str) -> NotFoundError:
    """The error for a model that is not served here."""
    return NotFoundError(f"The model '{excerpt(model)}' does not exist.", param="model", code="model_not_found")


class BodyTimeoutError(ApiError, status=408, type="timeout_error", code="request_body_timeout"):
    """The client was too slow to send its request."""


class ConflictError(ApiError, status=409, type="invalid_request_error"):
    """The request is not possible in the present state, or the id that it gives is ambiguous."""


class PayloadTooLargeError(ApiError, status=413, type="invalid_request_error", code="request_too_large"):
    """The body is over the limit."""


class UnsupportedMediaError(ApiError, status=415, type="invalid_request_error", code="unsupported_content_encoding"):
    """The body is in a form that is not read here."""


class RateLimitError(ApiError, status=429, type="rate_limit_error", code="rate_limit_exceeded"):
    """Too many requests, or too many bytes, at once."""


class HeadTooLargeError(ApiError, status=431, type="invalid_request_error", code="request_head_too_large"):
    """The request line and the headers are over the limit."""


class CancelledByAdminError(ApiError, status=499, type="request_cancelled", code="request_cancelled"):
    """The request was aborted through the admin API."""


class InternalError(ApiError, code="internal_error"):
    """A bug of Baton."""


class NotImplementedHereError(ApiError, status=501, type="invalid_request_error"):
    """The request needs a part of HTTP that is not supported."""


class UpstreamError(ApiError, status=502, code="upstream_error"):
    """A worker failed and no other could take over."""


class UnavailableError(ApiError, status=503, type="service_unavailable_error", code="no_worker"):
    """No worker can take the request now."""


def out_of_memory(who: str) -> UnavailableError:
    """The error for a request for which there is no memory. ``who``: the process that has none."""
    return UnavailableError(f"The {who} has no memory left for this request.", code="out_of_memory", retry_after_s=1)


class DeadlineError(ApiError, status=504, type="timeout_error", code="deadline_exceeded"):
    """A deadline passed."""
