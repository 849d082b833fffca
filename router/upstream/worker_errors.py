"""What a worker's error means for the client, and whether another worker is tried. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from baton_serve.core.protocol.errors import ApiError, UpstreamError
from baton_serve.router.upstream.events import END, data_of

#: Statuses after which another worker is tried. Other 4xx are about the request and go to the client unchanged.
_TRY_ANOTHER = frozenset({408, 425, 429})
#: Statuses that are about the router's call, not the client's: the client's own key was right.
_NOT_THE_CLIENTS = frozenset({401, 403, 404, 405})

_BAD_TOKEN = frozenset({401, 403})
#: Statuses by which an engine that judges a body itself says that its model cannot do what is asked. No other worker
#: of the model can, and the worker has not failed.
_CANNOT = frozenset({404, 405, 501})

#: Every error event contains this; in the text of an answer its quotes would be escaped.
LOOKS_FAILED: Final = b'"error"'

#: Most characters of a worker's message that are passed on.
MAX_TEXT_CHARS = 2000
#: Most bytes of a worker's whole error that are passed on as they are.
MAX_ERROR_BYTES = 65536
#: ``Retry-After`` in seconds, of at most six digits, which is more than a week.
_SECONDS = re.compile(rb"[0-9]{1,6}")
#: The statuses of HTTP. Clients would not understand any other.
_STATUSES = range(100, 600)
_ERRORS = range(400, 600)

#: D's code for "P's blocks could not be read".
READ_FAILED = "kv_read_failed"
#: A worker's code for a request that it was asked to end.
ABORTED = "aborted"
#: A worker's codes for "my engine died with this request on it", and "my engine was dead when the request came".
ENGINE_DEAD = "engine_dead"
ENGINE_GONE = "engine_gone"


class WorkerError(ApiError):
    """A worker's own error, passed on with its status."""

    def __init__(self, status: int, error: dict[str, Any], retry_after_s: float | None = None) -> None:
        message = error.get("message")
        super().__init__(
            message[:MAX_TEXT_CHARS] if isinstance(message, str) and message else "The worker refused the request.",
            code=_text(error.get("code")),
            param=_text(error.get("param")),
            retry_after_s=retry_after_s,
        )
        self.status = status
        self.type = _text(error.get("type")) or ("invalid_request_error" if status < 500 else "server_error")


class PassedOnError(WorkerError):
    """The error of a worker that alone judges the body: the client is sent its answer as it is."""

    def __init__(self, status: int, body: bytes, retry_after_s: float | None) -> None:
        super().__init__(status, _error_object(body), retry_after_s)
        self._body = body

    def to_json(self, request_id: str = "") -> bytes:
        return self._body

    def to_sse(self, request_id: str = "") -> bytes:
        return b"data: " + super().to_json(request_id) + b"\n\n"  # the body may have line breaks


def from_worker(status: int, body: bytes, retry_after: bytes = b"", *, as_sent: bool = False) -> ApiError:
    """The error that the client is sent when a worker answered ``status`` (not 200) with ``body``.

    ``as_sent``: only the worker judges the request, so the client is sent the worker's error byte for byte.
    """
    error = _error_object(body)
    if status in _BAD_TOKEN:
        return UpstreamError("A worker does not accept the router's internal token.")
    if as_sent and status in _ERRORS and len(body) <= MAX_ERROR_BYTES and _parsed(body):
        return PassedOnError(status, body, _seconds(retry_after))
    if status in _NOT_THE_CLIENTS and not (status == 404 and error.get("code") == "model_not_found"):
        return UpstreamError(f"A worker answered with status {status}.")
    if status < 400 or status not in _STATUSES:
        return UpstreamError(f"A worker answered with the unexpected status {status}.")
    if not error:
        return UpstreamError(f"A worker failed with status {status}.") if status >= 500 else WorkerError(status, {})
    return WorkerError(status, error, _seconds(retry_after))


def may_try_another(error: ApiError) -> bool:
    """Whether the same request may succeed on another worker, or later."""
    if isinstance(error, PassedOnError) and error.status in _CANNOT:
        return False
    return error.status >= 500 or error.status in _TRY_ANOTHER | _NOT_THE_CLIENTS or error.code == ABORTED


def error_event(events: bytes) -> ApiError | None:
    """The first error among the events of a stream, in OpenAI's envelope or as ``"object": "error"``."""
    if events.find(LOOKS_FAILED) < 0:  # ``in`` would first look for a number
        return None
    for event in events.split(END):
        data = data_of(event) if event.find(LOOKS_FAILED) >= 0 else None
        parsed = {} if data is None else _parsed(data)
        if parsed.get("error") or parsed.get("object") == "error":
            error = _inner(parsed)
            status = error.get("code")
            return WorkerError(status if isinstance(status, int) and 400 <= status <= 599 else 500, error)
    return None


def _seconds(retry_after: bytes) -> float | None:
    return float(retry_after) if _SECONDS.fullmatch(retry_after) else None


def _error_object(body: bytes) -> dict[str, Any]:
    """OpenAI's error object, also if an engine sends it without the envelope."""
    return _inner(_parsed(body))


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _inner(parsed: dict[str, Any]) -> dict[str, Any]:
    inner = parsed.get("error", parsed if "message" in parsed else {})
    return inner if isinstance(inner, dict) else {"message": _text(inner)}


def _text(value: object) -> str | None:
    """A text or number as text; None for anything else: lists and objects may be nested too deeply to be shown."""
    if isinstance(value, str | int | float):
        return str(value)[:MAX_TEXT_CHARS]
    return None
