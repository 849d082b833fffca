"""What a client is told when the engine gives up: one table from the engine's error codes to HTTP."""

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

#: By ``EngineError.code``; the code goes out unchanged. A code that is missing here is our own fault: 500.
KINDS: dict[str, type[ApiError]] = {
    "refused": BadRequestError,
    "invalid_request": BadRequestError,
    "context_length_exceeded": BadRequestError,
    "kv_params_invalid": BadRequestError,
    "queue_full": RateLimitError,
    "draining": UnavailableError,
    "aborted": CancelledByAdminError,
    "kv_read_failed": UpstreamError,
    "engine_dead": UnavailableError,
    "engine_gone": UnavailableError,
}
#: Seconds after which there may be room again; the other errors are not for the same worker to retry.
_RETRY_AFTER_S = {"queue_full": 1.0}
_PARAMS = {"kv_params_invalid": "kv_transfer_params"}


def to_api_error(error: EngineError) -> ApiError:
    """The same failure in OpenAI's words."""
    kind = KINDS.get(error.code, InternalError)
    return kind(
        str(error) or error.code,
        code=error.code,
        param=_PARAMS.get(error.code),
        retry_after_s=_RETRY_AFTER_S.get(error.code),
    )
