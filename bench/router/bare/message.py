"""What of a message in HTTP has to be known: where its head ends, and how long its body is. Pure."""

from __future__ import annotations

import re
from typing import Final

END_OF_HEAD: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\ncontent-length: *(\d+)", re.IGNORECASE)


def split(data: bytes) -> tuple[bytes, int] | None:
    """The head, and how many bytes the whole message has: 0, if the head does not say. None: the head is not whole."""
    end = data.find(END_OF_HEAD)
    if end < 0:
        return None
    head, length = data[:end], _LENGTH.search(data, 0, end)
    return head, 0 if length is None else end + len(END_OF_HEAD) + int(length[1])
