"""The engine's errors as HTTP errors: one table by error code."""

from __future__ import annotations

from baton_serve.core.protocol.errors import (
    ApiError,
    BadRequestError,
    CancelledByAdminError,
    InternalError,
    RateLimitError,
    UnavailableError,
    UpstreamError,
)
from baton_serve.core.protocol.openai.structured import Form
from baton_serve.workers.engine.api import EngineError, GrammarFailedError
from baton_serve.workers.grammar.sentences import in_words

#: The HTTP error for each ``EngineError.code``, which the answer has too. A code that is missing here becomes a 500.
KINDS: dict[str, type[ApiError]] = {
    "refused": BadRequestError,
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


def to_api_error(error: EngineError, form: Form | None = None) -> ApiError:
    """The same failure as an OpenAI error. ``form``: what the answer had to look like."""
    kind = KINDS.get(error.code, InternalError)
    message, param = str(error) or error.code, _PARAMS.get(error.code)
    if isinstance(error, GrammarFailedError) and form is not None:
        message, param = f"'{form.param}' cannot be followed any further: {in_words(message)}.", form.param
    return kind(message, code=error.code, param=param, retry_after_s=_RETRY_AFTER_S.get(error.code))
