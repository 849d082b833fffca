"""Whether a browser sent a request for a page that somebody else made.

Where no token is asked for, the browser of somebody who may reach the port would open it to every page it shows: a
request needs no answer to do harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS = frozenset({b"same-origin", b"none"})


def is_from_other_site(headers: Mapping[bytes, bytes]) -> bool:
    """What the browser says: ``Sec-Fetch-Site``, which pages cannot set, also right behind a proxy that changes
    ``Host``. Browsers send that to loopback and over TLS only; else ``Origin``, with everything that is not a GET.
    """
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in _OURS
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower()
