"""Checks the internal token on a worker's two ports."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from core.protocol.errors import AuthenticationError
from workers.server.http import header

if TYPE_CHECKING:
    from pydantic import SecretStr
    from starlette.types import Scope

#: The router sends the internal token in this header to the public port. It has checked keys and limits.
TRUST_HEADER = b"x-baton-internal-token"


class Access:
    """Checks the internal token. Without a token every request is accepted: then both ports are on loopback."""

    def __init__(self, token: SecretStr | None) -> None:
        self._token = None if token is None else token.get_secret_value().encode()

    def check_router(self, scope: Scope) -> None:
        """Raise AuthenticationError unless the request comes from the router."""
        if not self._agrees(header(scope, TRUST_HEADER)):
            raise AuthenticationError(
                "This worker takes requests from its router only: the internal token is missing or wrong.",
                code="invalid_internal_token",
            )

    def check_bearer(self, scope: Scope) -> None:
        """Raise AuthenticationError unless the request has ``Authorization: Bearer <internal token>``."""
        value = header(scope, b"authorization") or ""
        kind, _, token = value.partition(" ")
        if not self._agrees(token if kind.lower() == "bearer" else None):
            raise AuthenticationError("The internal token is missing or wrong.", code="invalid_internal_token")

    def _agrees(self, given: str | None) -> bool:
        if self._token is None:
            return True
        return given is not None and hmac.compare_digest(given.encode("latin-1", errors="replace"), self._token)
