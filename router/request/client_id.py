"""The id that a client gives its request: sent back, and shown in log and trace. The router never looks it up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: OpenAI's header for it, under which the router also sends it back.
HEADER: Final = b"x-client-request-id"
#: The headers that a client may use; the first wins. In an answer the second one has the router's own id.
_GIVEN: Final = (HEADER, b"x-request-id")
#: Printable ASCII; the length limit is OpenAI's.
_CLIENT_ID: Final = re.compile(rb"[ -~]{1,512}")


def client_id(headers: Mapping[bytes, bytes]) -> str:
    """The client's id; empty if missing, too long or not printable. Never truncated: a part would be another id."""
    for name in _GIVEN:
        given = headers.get(name)
        if given is not None and _CLIENT_ID.fullmatch(given):
            return given.decode("ascii")
    return ""
