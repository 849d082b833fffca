"""Refuses requests before their keys are checked: by the name in ``Host``, and by the site of the sending page.

Paths that a key or token guards are not checked for the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from baton_serve.core.net.access.hosts import hosts_of, is_from_other_site
from baton_serve.core.protocol.errors import PermissionDeniedError
from baton_serve.router.edge.cors import Cors, is_preflight
from baton_serve.router.request.endpoints import ENDPOINTS
from baton_serve.router.settings import RouterSettings

#: Paths that need an API key, or the admin token. The page ``/dashboard`` is open, but shows nothing without the token.
_WITH_KEYS: Final = ("/v1/", *ENDPOINTS, "/openapi.json", "/docs")
_WITH_ADMIN_TOKEN: Final = ("/admin", "/dashboard")

_OTHER_SITE: Final = (
    "Pages of other sites may not use this API: add the page's origin to the setting cors_origins "
    "(BATON_ROUTER_CORS_ORIGINS)."
)
_NO_ADMIN: Final = "The admin API does not answer pages of other sites."


class Doors:
    """The checks of the public port, from the settings."""

    def __init__(self, settings: RouterSettings) -> None:
        self.cors = Cors(settings.cors_origins)
        self._hosts = hosts_of(settings.host, settings.advertised(settings.host), settings.allowed_hosts)
        self._has_keys = bool(settings.api_keys)
        self._has_admin_token = settings.admin_token is not None
        self._guarded = (_WITH_KEYS if self._has_keys else ()) + (_WITH_ADMIN_TOKEN if self._has_admin_token else ())

    def check(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Raise PermissionDeniedError for a request that is refused."""
        if not path.startswith(self._guarded):
            self._hosts.check(headers.get(b"host"))
        if is_api(path):
            self._check_page(method, headers)
        elif path.startswith("/admin") and not self._has_admin_token and is_from_other_site(headers):
            raise PermissionDeniedError(_NO_ADMIN, code="other_site")

    def _check_page(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        """With API keys, refuse only preflights: after a failed one, browsers do not send the page's request."""
        if self._has_keys and not is_preflight(method, headers):
            return
        if is_from_other_site(headers) and not self.cors.allows(headers.get(b"origin")):
            raise PermissionDeniedError(_OTHER_SITE, code="other_site")


def is_api(path: str) -> bool:
    """Whether the path belongs to the API for programs, which CORS can open to pages."""
    return path.startswith("/v1/") or path in ENDPOINTS
