"""The form of request ids, which name their router. ``ids`` has what people read and type of them."""

from __future__ import annotations

import os
import re
import secrets
from typing import Final

#: Hex digits of a router id, and the number of digits that a request id has in addition.
ROUTER_ID_CHARS: Final = 12
_REST_CHARS: Final = 20
_REQUEST_ID: Final = re.compile(f"[0-9a-f]{{{ROUTER_ID_CHARS + _REST_CHARS}}}")
#: The system is asked for the digits of so many ids at once: that is a call for each request less.
_IDS_AT_ONCE: Final = 256


class _Digits:
    """Random hex digits, each used once: in one thread, and not by a process and its fork."""

    def __init__(self) -> None:
        self._unused = ""
        self._num_used = 0

    def take(self) -> str:
        """The digits of one request id."""
        begin = self._num_used
        if begin >= len(self._unused):
            self._unused = os.urandom(_IDS_AT_ONCE * _REST_CHARS // 2).hex()
            begin = 0
        end = self._num_used = begin + _REST_CHARS
        return self._unused[begin:end]


_DIGITS: Final = _Digits()


def new_router_id() -> str:
    """Twelve random hex digits."""
    return secrets.token_hex(ROUTER_ID_CHARS // 2)


def new_request_id(router_id: str) -> str:
    """A new request id: random digits first (``core/protocol/ids.py``), then the id of its router."""
    return _DIGITS.take() + router_id


def is_request_id(text: str) -> bool:
    """Whether it has the form of ``new_request_id``, which other ids are unlikely to have."""
    return _REQUEST_ID.fullmatch(text) is not None


def owner_of(request_id: str) -> str:
    """The id of the request's router. For a text that is no request id, the result is no router's id."""
    return request_id[-ROUTER_ID_CHARS:]
