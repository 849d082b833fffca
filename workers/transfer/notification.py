"""The notification a reader sends when it has read what a lease holds: ``<lease id>:1``, as vLLM spells it.

NIXL lets anybody who can connect send anything, so what comes in is checked here and nothing else looks at it.
"""

from __future__ import annotations

import re

#: Longer ones are dropped unread.
MAX_NOTIFICATION_BYTES = 256
_NOTIFICATION = re.compile(rb"([0-9A-Za-z_-]{1,128}):([0-9]{1,4})")


def encode_read(lease_id: str) -> bytes:
    """What D tells each rank of P. The number is how many ranks of D read that rank; one as yet."""
    return f"{lease_id}:1".encode()


def parse_read(payload: bytes) -> str | None:
    """The lease id, or None for anything that no reader of ours would have sent. Never raises."""
    if len(payload) > MAX_NOTIFICATION_BYTES:
        return None
    match = _NOTIFICATION.fullmatch(payload)
    return match.group(1).decode("ascii") if match else None
