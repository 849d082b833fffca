"""The engine's errors as HTTP errors: one table by error code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.protocol.errors import (
    ApiError,
    BadRequestError,
    CancelledByAdminError,
    InternalError,
    RateLimitError,
    UnavailableError,
    UpstreamError,
)

if TYPE_CHECKING:
    from workers.engine.api import EngineError

#: The HTTP error for each ``EngineError.code``, which the answer has too. A code that is missing here becomes a 500.
KINDS: dict[str, type[ApiError]] = {
    "refused": BadRequestError,
    "invalid_request": BadRequestError,
    "context_length_exceeded": BadRequestError,
    "kv_params_invalid": BadRequestError,
    "other_adapter": UpstreamError,
    "queue_full": RateLimitError,
    "draining": UnavailableError,
    "aborted": CancelledByAdminError,
    "grammar_failed": BadRequestError,
    "kv_read_failed": UpstreamError,
    "engine_dead": UnavailableError,
    "engine_gone": UnavailableError,
}
#: Seconds after which the same worker may have room again. After other errors the worker should not be tried again.
_RETRY_AFTER_S = {"queue_full": 1.0}
_PARAMS = {"kv_params_invalid": "kv_transfer_params"}


def to_api_error(error: EngineError) -> ApiError:
    """The same failure as an OpenAI error."""
    kind = KINDS.get(error.code, InternalError)
    return kind(
        str(error) or error.code,
        code=error.code,
        param=_PARAMS.get(error.code),
        retry_after_s=_RETRY_AFTER_S.get(error.code),
    )
