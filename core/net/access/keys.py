"""Secrets that a request has to show, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import SecretStr


class Keys:
    """The secrets that a port accepts; any one of them is enough. Without any, every request passes."""

    def __init__(self, keys: Iterable[SecretStr | None]) -> None:
        """Entries that are None are ignored."""
        self._keys = tuple(key.get_secret_value().encode() for key in keys if key is not None)

    def match(self, given: bytes | None) -> bool:
        """Whether ``given`` is one of the keys; always True without keys."""
        if not self._keys:
            return True
        if given is None:
            return False
        is_known = False
        for key in self._keys:  # all are compared, so that the time does not show which one matched
            is_known |= hmac.compare_digest(given, key)
        return is_known

    def match_bearer(self, authorization: bytes | None) -> bool:
        """Whether the header ``Authorization: Bearer <key>`` has one of the keys; always True without keys."""
        scheme, _, given = (authorization or b"").partition(b" ")
        return self.match(given.strip() if scheme.lower() == b"bearer" else None)
