"""Signatures of announcements: write access to Redis is not enough to announce a worker or a router.

An announcement is a JSON object. A signed one has one more member at its end: ``"signature"``, the 64 hex digits of an
HMAC-SHA256. The HMAC is over the name of the kind, a newline, and the bytes of the object without that member. So
nothing is parsed before it is verified, and a reader without a key ignores the member like any unknown one.

A signature does not say when the announcement was written: an old one can be written into Redis again. Announcements
have a sequence number that only grows, so that an old one cannot keep a dead process alive (``view.py``), and a router
sends its token only to processes that prove that they know the token.
"""

from __future__ import annotations

import hmac

_BEFORE = b',"signature":"'
_AFTER = b'"}'
_NUM_DIGITS = 64


class UntrustedError(Exception):
    """The writer of this announcement does not know the internal token. ``reason`` is a label of a metric."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def sign(key: bytes, kind: str, announcement: bytes) -> bytes:
    """The JSON object ``announcement`` with its signature added."""
    return announcement.removesuffix(b"}") + _BEFORE + _signature(key, kind, announcement) + _AFTER


def verify(key: bytes, kind: str, data: bytes) -> bytes:
    """The opposite of ``sign``: the JSON object without its signature. Raises UntrustedError."""
    end = len(data) - len(_AFTER) - _NUM_DIGITS
    begin = end - len(_BEFORE)
    if begin < 0 or data[begin:end] != _BEFORE or not data.endswith(_AFTER):
        raise UntrustedError("unsigned")
    announcement = data[:begin] + b"}"
    if not hmac.compare_digest(data[end : end + _NUM_DIGITS], _signature(key, kind, announcement)):
        raise UntrustedError("wrong_signature")
    return announcement


def _signature(key: bytes, kind: str, announcement: bytes) -> bytes:
    return hmac.digest(key, kind.encode() + b"\n" + announcement, "sha256").hex().encode()
