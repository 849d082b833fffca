"""Bearer tokens, compared in constant time."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from fastapi import Request

from core.protocol.errors import AuthenticationError, PermissionDeniedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import SecretStr


class BearerKeys:
    """The keys that open a door. Without any, the door is open."""

    #: What somebody hears who brought none, and who brought a wrong one.
    _missing = "You didn't provide an API key: send it as 'Authorization: Bearer <key>'."
    _wrong = "Incorrect API key provided."

    def __init__(self, keys: Iterable[SecretStr]) -> None:
        self._keys = tuple(key.get_secret_value().encode() for key in keys)

    def check(self, authorization: bytes | None) -> None:
        """Raise AuthenticationError unless the header carries one of the keys."""
        if not self._keys:
            return
        if authorization is None:
            raise AuthenticationError(self._missing)
        scheme, _, given = authorization.partition(b" ")
        given = given.strip()
        known = False
        for key in self._keys:  # all of them, so that time tells nothing
            known |= hmac.compare_digest(given, key)
        if scheme.lower() != b"bearer" or not known:
            raise AuthenticationError(self._wrong)

    def guard(self, request: Request) -> None:
        """``check`` as a dependency of FastAPI's."""
        header = request.headers.get("authorization")
        self.check(None if header is None else header.encode("latin-1"))


class AdminKeys(BearerKeys):
    """The key of ``/admin``; without one it is open to those who can only come from this machine."""

    _missing = "The admin API needs the admin token: send it as 'Authorization: Bearer <admin token>'."
    _wrong = "Incorrect admin token provided."

    def __init__(self, token: SecretStr | None, *, reachable: bool) -> None:
        """``reachable`` False: anybody could connect and there is no token, so nobody may."""
        super().__init__(() if token is None else (token,))
        self._reachable = reachable

    def check(self, authorization: bytes | None) -> None:
        """As ``BearerKeys``; PermissionDeniedError where nobody may."""
        if not self._reachable:
            raise PermissionDeniedError("The admin API needs an admin token here.", code="admin_disabled")
        super().check(authorization)
