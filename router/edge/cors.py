"""Which pages of other sites may use ``/v1``, by the rules of browsers (CORS). If no origin is set, none may.

``/admin`` is never opened: a page that can abort and drain must come from the router itself. CORS "credentials" are
never allowed, because the API uses no cookies; a page sends its key itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from baton_serve.core.net.answers import header_lines

if TYPE_CHECKING:
    from starlette.types import Message, Send

ANY: Final = "*"
#: Headers of answers that scripts may read, in addition to the headers that they always may.
EXPOSED: Final = b"x-request-id, request-id, x-client-request-id, retry-after"
#: Seconds that a browser may remember a preflight; Chromium's own limit is two hours.
MAX_AGE_S: Final = 7200
#: A list of header names, in the form that browsers send.
_NAMES: Final = re.compile(rb"[0-9A-Za-z!#$%&'*+.^_`|~-]+(?:\s*,\s*[0-9A-Za-z!#$%&'*+.^_`|~-]+)*")
_MAX_NAMES_BYTES: Final = 2048


class Cors:
    """The allowed origins, from the settings; ``*`` allows every origin."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._any = ANY.encode() in self._origins

    def __bool__(self) -> bool:
        return bool(self._origins)

    def allows(self, origin: bytes | None) -> bool:
        """Whether pages of that origin may use ``/v1``."""
        return origin is not None and (self._any or origin.lower() in self._origins)

    def opened(self, send: Send, origin: bytes | None) -> Send:
        """Wraps ``send`` to add the headers that let the page read the answer, also an error."""
        more = self._headers(origin)

        async def send_opened(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        return send_opened

    def lines(self, origin: bytes | None) -> bytes:
        """The same headers as ``opened`` adds, as they are sent."""
        return header_lines(self._headers(origin))

    def preflight(self, asked: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """Headers that list what an allowed page may send, in addition to the headers of ``opened``."""
        headers = [
            (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
            (b"access-control-max-age", b"%d" % MAX_AGE_S),
            (b"vary", b"access-control-request-headers"),
        ]
        names = asked.get(b"access-control-request-headers", b"").strip()
        if len(names) <= _MAX_NAMES_BYTES and _NAMES.fullmatch(names):
            headers.append((b"access-control-allow-headers", names))
        if asked.get(b"access-control-request-private-network") == b"true":
            headers.append((b"access-control-allow-private-network", b"true"))
        return headers

    def _headers(self, origin: bytes | None) -> list[tuple[bytes, bytes]]:
        vary = [] if self._any else [(b"vary", b"origin")]
        if origin is None or not self.allows(origin):
            return vary
        return [
            (b"access-control-allow-origin", ANY.encode() if self._any else origin),
            (b"access-control-expose-headers", EXPOSED),
            *vary,
        ]


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether it is a preflight: a browser's question before it sends the request of another site's page."""
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


async def answer_preflight(send: Send, headers: list[tuple[bytes, bytes]]) -> None:
    """Answer 204 without a body."""
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
