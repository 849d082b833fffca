"""Signatures of announcements: whoever can write into Redis cannot make anybody a worker or a router.

An announcement is a JSON object. Signed, it has one member more, the last: ``"signature"``, 64 hex digits of
HMAC-SHA256. Signed is the name of the kind, a newline and the object as it is without that member, byte for byte, so
that nothing is parsed before it has been checked, and a reader without a key skips the member as any it does not know.

A signature says who wrote the announcement, not when: an old one can be written into Redis again. Announcements have a
number that only grows, so that an old one prolongs nobody's life (``view.py``), and a router shows its token only to
those who prove that they know it.
"""

from __future__ import annotations

import hmac

_BEFORE = b',"signature":"'
_AFTER = b'"}'
_NUM_DIGITS = 64


class UntrustedError(Exception):
    """Whoever wrote this does not know the internal token. ``reason`` is for a metric."""

    reason = "wrong_signature"


class UnsignedError(UntrustedError):
    """It has no signature."""

    reason = "unsigned"


def sign(key: bytes, kind: str, announcement: bytes) -> bytes:
    """A JSON object with its signature."""
    return announcement.removesuffix(b"}") + _BEFORE + _signature(key, kind, announcement) + _AFTER


def check(key: bytes, kind: str, data: bytes) -> bytes:
    """The JSON object that was signed. Raises UntrustedError."""
    end = len(data) - len(_AFTER) - _NUM_DIGITS
    begin = end - len(_BEFORE)
    if begin < 0 or data[begin:end] != _BEFORE or not data.endswith(_AFTER):
        raise UnsignedError
    announcement = data[:begin] + b"}"
    if not hmac.compare_digest(data[end : end + _NUM_DIGITS], _signature(key, kind, announcement)):
        raise UntrustedError
    return announcement


def _signature(key: bytes, kind: str, announcement: bytes) -> bytes:
    return hmac.digest(key, kind.encode() + b"\n" + announcement, "sha256").hex().encode()
