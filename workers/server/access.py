"""Checks the internal token on a worker's two ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.requests import Request

from baton_serve.core.net.access.keys import Keys
from baton_serve.core.protocol.errors import AuthenticationError

if TYPE_CHECKING:
    from pydantic import SecretStr

#: The router sends the internal token in this header to the public port, after it has checked keys and limits.
TRUST_HEADER = b"x-baton-internal-token"


class Access:
    """Checks the internal token. If none is configured, every request is accepted: then both ports are on loopback."""

    def __init__(self, token: SecretStr | None) -> None:
        self._keys = Keys([token])

    def check_router(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise AuthenticationError unless the request comes from the router. ``headers`` have lower-case names."""
        if not self._keys.match(headers.get(TRUST_HEADER)):
            raise AuthenticationError(
                "This worker takes requests from its router only: the internal token is missing or wrong.",
                code="invalid_internal_token",
            )

    def check_bearer(self, request: Request) -> None:
        """Raise AuthenticationError unless the request has the internal token. A dependency of FastAPI's."""
        if not self._keys.match_bearer(dict(request.scope["headers"]).get(b"authorization")):
            raise AuthenticationError("The internal token is missing or wrong.", code="invalid_internal_token")
