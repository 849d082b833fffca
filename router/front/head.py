"""What the head of a request for workers says: its key, its deadline, its content type, its priority. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.router.queue.priorities import HEADER, PriorityClasses, granted
from baton_serve.router.request.endpoints import ENDPOINTS, MESSAGES

_PRIORITY: Final = HEADER.encode()


def key_in(path: str, headers: Mapping[bytes, bytes]) -> bytes | None:
    """The client's key as the value of ``Authorization``. Anthropic's clients have a header of their own for it.

    Raises BadRequestError if a request has two keys: a proxy that checks keys may have looked at the other one.
    """
    given = headers.get(b"authorization")
    anthropic = headers.get(b"x-api-key") if path.startswith(MESSAGES.path) else None
    if anthropic is None:
        return given
    if given not in (None, b"Bearer " + anthropic):
        raise BadRequestError("A request has one key.", code="invalid_http")
    return b"Bearer " + anthropic


def check_content_type(path: str, headers: Mapping[bytes, bytes]) -> None:
    """Raise BadRequestError for a form where only JSON is passed on."""
    if path in ENDPOINTS and headers.get(b"content-type", b"").strip().lower().startswith(b"multipart/"):
        raise BadRequestError(
            "Only JSON bodies are passed on to workers here, no multipart/form-data.", code="unsupported_content_type"
        )


def timeout_s(headers: Mapping[bytes, bytes], limit_s: float) -> float:
    """Seconds that the request may take: ``limit_s`` unless the client wants fewer. Raises BadRequestError."""
    given = headers.get(b"x-request-timeout")
    if given is None:
        return limit_s
    try:
        seconds = math.nan if b"_" in given else float(given)  # Python reads 1_0 as 10
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise BadRequestError(
            "The header 'x-request-timeout' must be a positive number of seconds.",
            param="x-request-timeout",
            code="invalid_value",
        )
    return min(seconds, limit_s)


def priority_in(headers: Mapping[bytes, bytes], classes: PriorityClasses, client_priority: str) -> int | None:
    """The priority that the client gets for the header's. None: there is no header, and the body's priority counts."""
    given = headers.get(_PRIORITY)
    return None if given is None else granted(client_priority, classes.number_of(given))
