"""The header by which a worker tells clients apart, so that no client takes what others wait for.

The key says which requests are of one client, not which client: that can only be guessed, with the internal token.
"""

from __future__ import annotations

import hmac
import ipaddress
import re

HEADER = "x-baton-client"
_VALUE = re.compile(r"[0-9a-f]{16}")


def client_key(key: bytes, told: bytes) -> str:
    """The key of the client that ``told`` tells from others, such as an API key or an address. ``key``: see
    ``clients_key`` in ``token_keys.py``.
    """
    return hmac.digest(key, told, "sha256")[:8].hex()


def network_of(address: str) -> bytes:
    """What is the same for all addresses of one machine: IPv4's whole address, the first 64 bits of IPv6's."""
    known = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(known, ipaddress.IPv6Address):
        return known.packed[:8] if known.ipv4_mapped is None else known.ipv4_mapped.packed
    return known.packed


def client_in(value: bytes | None) -> str:
    """The key in a header's value; empty if it has none."""
    text = "" if value is None else value.decode("latin-1")
    return text if _VALUE.fullmatch(text) else ""
