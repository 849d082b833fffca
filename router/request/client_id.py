"""What a client calls its own request: told back to it, in the log and the trace. We never know a request by it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: OpenAI's name for it; the client reads it back under this one.
HEADER = b"x-client-request-id"
#: Where it may be; the first wins. In an answer the second is our own id.
_GIVEN = (HEADER, b"x-request-id")
#: Printable ASCII, of OpenAI's length.
_CLIENT_ID = re.compile(rb"[ -~]{1,512}")


def client_id(headers: Mapping[bytes, bytes]) -> str:
    """Empty when there is none, or none that is short and printable: part of an id would be another one."""
    for name in _GIVEN:
        given = headers.get(name)
        if given is not None and _CLIENT_ID.fullmatch(given):
            return given.decode("ascii")
    return ""
