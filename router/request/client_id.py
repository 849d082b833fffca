"""What a client calls its own request: sent back to it, and shown in log and trace. The router never looks it up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: OpenAI's name for it; the client reads it back under this one.
HEADER = b"x-client-request-id"
#: The headers in which it may come; the first wins. In an answer the second one has our own id.
_GIVEN = (HEADER, b"x-request-id")
#: Printable ASCII, of OpenAI's length.
_CLIENT_ID = re.compile(rb"[ -~]{1,512}")


def client_id(headers: Mapping[bytes, bytes]) -> str:
    """The id; empty if there is none that is short and printable. It is never cut, since a part would be another id."""
    for name in _GIVEN:
        given = headers.get(name)
        if given is not None and _CLIENT_ID.fullmatch(given):
            return given.decode("ascii")
    return ""
