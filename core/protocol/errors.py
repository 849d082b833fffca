"""Errors as OpenAI clients expect them, and the one encoder for them: JSON before the first byte, an SSE event after.

ApiError
├── BadRequestError          400 invalid_request_error     the client must change the request
├── AuthenticationError      401 invalid_request_error
├── PermissionDeniedError    403 permission_error
├── NotFoundError            404 invalid_request_error     unknown model, unknown request id
├── ConflictError            409 invalid_request_error     not possible with what is there now
├── BodyTimeoutError         408 timeout_error             the client was too slow to send its request
├── PayloadTooLargeError     413 invalid_request_error
├── UnsupportedMediaError    415 invalid_request_error     the body is compressed
├── RateLimitError           429 rate_limit_error          too much at once; ``Retry-After`` says when
├── HeadTooLargeError        431 invalid_request_error     the request line and the headers are over the limit
├── CancelledByAdminError    499 request_cancelled         aborted through the admin REST
├── InternalError            500 server_error
├── NotImplementedHereError  501 invalid_request_error     a part of HTTP that is not supported
├── UpstreamError            502 server_error              a worker failed and no other could take over
├── UnavailableError         503 service_unavailable_error no worker
└── DeadlineError            504 timeout_error             the request's own deadline, or a phase's
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


class BadRequestError(ApiError):
    """The client must change the request."""

    status = 400
    type = "invalid_request_error"


class AuthenticationError(ApiError):
    """The key is missing or wrong."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class PermissionDeniedError(ApiError):
    """The key is valid but not for this path, or the request's origin is not allowed."""

    status = 403
    type = "permission_error"


class NotFoundError(ApiError):
    """No such model, request or path."""

    status = 404
    type = "invalid_request_error"


def no_such_model(model: str) -> NotFoundError:
    """The error for a model that is not served here."""
    return NotFoundError(f"The model '{excerpt(model)}' does not exist.", param="model", code="model_not_found")


class BodyTimeoutError(ApiError):
    """The client was too slow to send its request."""

    status = 408
    type = "timeout_error"
    code = "request_body_timeout"


class ConflictError(ApiError):
    """The request is not possible in the present state, or the id that it gives is ambiguous."""

    status = 409
    type = "invalid_request_error"


class PayloadTooLargeError(ApiError):
    """The body is over the limit."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class UnsupportedMediaError(ApiError):
    """The body is in a form that is not read here."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_content_encoding"


class RateLimitError(ApiError):
    """Too many requests, or too many bytes, at once."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class HeadTooLargeError(ApiError):
    """The request line and the headers are over the limit."""

    status = 431
    type = "invalid_request_error"
    code = "request_head_too_large"


class CancelledByAdminError(ApiError):
    """The request was aborted through the admin API."""

    status = 499
    type = "request_cancelled"
    code = "request_cancelled"


class InternalError(ApiError):
    """A bug of Baton."""

    code = "internal_error"


class NotImplementedHereError(ApiError):
    """The request needs a part of HTTP that is not supported."""

    status = 501
    type = "invalid_request_error"


class UpstreamError(ApiError):
    """A worker failed and no other could take over."""

    status = 502
    code = "upstream_error"


class UnavailableError(ApiError):
    """No worker can take the request now."""

    status = 503
    type = "service_unavailable_error"
    code = "no_worker"


def out_of_memory(who: str) -> UnavailableError:
    """The error for a request for which there is no memory. ``who``: the process that has none."""
    return UnavailableError(f"The {who} has no memory left for this request.", code="out_of_memory", retry_after_s=1)


class DeadlineError(ApiError):
    """A deadline passed."""

    status = 504
    type = "timeout_error"
    code = "deadline_exceeded"
