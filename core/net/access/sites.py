"""Whether a browser sent a request for a page of another site.

A port without a token would be open to every page in every browser that can reach it. The page need not even read the
answer: sending a request is enough to do harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS: Final = frozenset({b"same-origin", b"none"})


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
