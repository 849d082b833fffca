"""Engine and lease ids: random, and checked before they become part of the name of a Redis key."""

from __future__ import annotations

import secrets

from baton_serve.core.protocol.id_syntax import KEY_ID

MAX_DURATION_MS = 86_400_000


def new_id() -> str:
    """128 random bits as hex, for an engine or a lease."""
    return secrets.token_hex(16)


def check_id(value: str) -> str:
    """The id itself. Raises ValueError if it is malformed: it may have come from another machine."""
    if KEY_ID.fullmatch(value) is None:
        raise ValueError(f"not an engine or lease id: {value[:40]!r}")
    return value


def check_duration(duration_ms: int) -> int:
    """The duration itself. Raises ValueError unless it is positive and below a day."""
    if not 0 < duration_ms <= MAX_DURATION_MS:
        raise ValueError(f"a lease lasts between 1 ms and a day, not {duration_ms} ms")
    return duration_ms
