"""Requests of browsers to a port without a token: the names that it may be called by, and pages of other sites.

A page can have its own name point to 127.0.0.1 for a moment (DNS rebinding). A browser on this machine then takes the
port for the page's own server, so that the page's script may send and read everything. ``Host`` still has the name of
the page, because no script can change it.

Such a port would be open to every page in every browser that can reach it. The page need not even read the answer:
sending a request is enough to do harm.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final

from baton_serve.core.protocol.errors import PermissionDeniedError

#: Value of the setting that accepts every name.
ANY: Final = "*"
#: RFC 9110: an IPv6 address is in brackets, and a port may follow.
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:@/?#\s]+))(?::\d{0,5})?")
#: Accepted headers that are remembered; others are parsed each time.
_MAX_KNOWN: Final = 256

#: What ``Sec-Fetch-Site`` says of requests of no other site.
_OURS: Final = frozenset({b"same-origin", b"none"})

REFUSED: Final = (
    "No token guards this path, so it is served under this machine's own names only, such as localhost and 127.0.0.1. "
    "If the name in your request's Host header is yours, add it to the setting allowed_hosts (BATON_ALLOWED_HOSTS)."
)


class Hosts:
    """Accepts loopback names, ``names``, and with ``addresses`` every IP address, which no page has as its name."""

    def __init__(self, names: Iterable[str] = (), *, addresses: bool = False) -> None:
        self._names = frozenset(_plain(name) for name in names) - {""}
        self._addresses = addresses
        self._known: set[bytes] = set()

    def __repr__(self) -> str:
        more = ["any address"] if self._addresses else []
        return f"<Hosts {', '.join(['loopback', *more, *sorted(self._names)])}>"

    def check(self, host: bytes | None) -> None:
        """Raise PermissionDeniedError unless the ``Host`` header has an accepted name. None: the request has no such
        header. Ports take that from clients of HTTP/1.0 only, and browsers always send one.
        """
        if host not in self._known and host is not None:
            self._look_at(host)

    def _look_at(self, host: bytes) -> None:
        if not (ANY in self._names or self._is_ours(name_in(host))):
            raise PermissionDeniedError(REFUSED, code="host_not_allowed")
        if len(self._known) < _MAX_KNOWN:
            self._known.add(host)

    def _is_ours(self, name: str) -> bool:
        if name in self._names or is_loopback(name):
            return True
        return self._addresses and _address(name) is not None


def hosts_of(bound: str, advertised: str, allowed: Iterable[str]) -> Hosts:
    """The names of a port that is bound to ``bound`` and advertised as ``advertised``; ``allowed`` is the setting."""
    return Hosts((bound, advertised, *allowed), addresses=not is_loopback(bound))


def is_from_other_site(headers: Mapping[bytes, bytes]) -> bool:
    """Whether ``Sec-Fetch-Site`` names another site. A page cannot set it, and it does not depend on the ``Host`` that
    a proxy sends.

    Browsers send it over TLS and to loopback only. Without it, ``Origin`` decides: browsers send that with every
    request except a GET.
    """
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in _OURS
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower()


def name_in(host: bytes) -> str:
    """The name or address in a ``Host`` header, in lower case, without port and brackets; empty if there is none."""
    match = _HOST.fullmatch(host.decode("latin-1"))
    return "" if match is None else _plain(match[1] or match[2])


def is_loopback(name: str) -> bool:
    """Whether a name or address means this machine only. No one can register ``*.localhost`` (RFC 6761)."""
    address = _address(name)
    if address is None:
        return name == "localhost" or name.endswith(".localhost")
    return address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _plain(name: str) -> str:
    return name.lower().removesuffix(".").strip("[]")
