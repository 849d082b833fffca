"""The header with which a router tells a worker whose request it sends, so that no client takes what others wait for.

The key is opaque: it says which requests are of one client, and nothing of who that is.
"""

from __future__ import annotations

import hmac
import re

HEADER = "x-baton-client"
_VALUE = re.compile(r"[0-9a-f]{16}")


def client_key(secret: bytes, told: bytes) -> str:
    """The key of the client that ``told`` tells from others, such as an API key or an address. Routers with one
    ``secret`` agree on it.
    """
    return hmac.digest(secret, told, "sha256")[:8].hex()


def client_in(value: bytes | None) -> str:
    """The key in a header's value; empty if it has none."""
    text = "" if value is None else value.decode("latin-1")
    return text if _VALUE.fullmatch(text) else ""
