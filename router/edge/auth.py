"""Checks the keys of clients and of operators, and answers requests without a valid key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastapi import Request

from baton_serve.core.net.access.keys import Keys
from baton_serve.core.protocol.errors import AuthenticationError, PermissionDeniedError

if TYPE_CHECKING:
    from pydantic import SecretStr


class BearerKeys:
    """The API keys of clients. If none is set, every request passes."""

    #: Error messages for a request without a key, and with a wrong one.
    _missing = "You didn't provide an API key: send it as 'Authorization: Bearer <key>'."
    _wrong = "Incorrect API key provided."

    def __init__(self, keys: Iterable[SecretStr]) -> None:
        self._keys = Keys(keys)

    def check(self, authorization: bytes | None) -> None:
        """Raise AuthenticationError unless the header carries one of the keys."""
        if not self._keys.match_bearer(authorization):
            raise AuthenticationError(self._missing if authorization is None else self._wrong)

    def guard(self, request: Request) -> None:
        """``check`` as a dependency of FastAPI."""
        header = request.headers.get("authorization")
        self.check(None if header is None else header.encode("latin-1"))


class AdminKeys(BearerKeys):
    """The admin token. Without one, ``/admin`` is open if only this machine can connect, else closed."""

    _missing = "The admin API needs the admin token: send it as 'Authorization: Bearer <admin token>'."
    _wrong = "Incorrect admin token provided."

    def __init__(self, token: SecretStr | None, *, reachable: bool) -> None:
        """``reachable`` False: other machines can connect and there is no token, so every request is refused."""
        super().__init__(() if token is None else (token,))
        self._reachable = reachable

    def check(self, authorization: bytes | None) -> None:
        """Raise AuthenticationError as ``BearerKeys`` does, or PermissionDeniedError if every request is refused."""
        if not self._reachable:
            raise PermissionDeniedError("The admin API needs an admin token here.", code="admin_disabled")
        super().check(authorization)
