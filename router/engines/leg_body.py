"""Puts a leg's body together: what all legs have in common, and a short tail. Pure.

P's ``kv_transfer_params`` and prompts as token ids are spliced in without parsing, since they are long.
"""

from __future__ import annotations

from typing import Any

import orjson


def opened(fields: dict[str, Any]) -> bytes:
    """The fields as JSON without the closing brace."""
    return orjson.dumps(fields)[:-1]


def closed(common: bytes, tail: dict[str, Any], **raw: bytes) -> bytes:
    """``common``, from ``opened``, with ``tail`` and with the fields of ``raw``, whose values are JSON already."""
    more = orjson.dumps(tail)[1:-1] if tail else b""
    for name, value in raw.items():
        more = b'%b%b"%b":%b' % (more, b"," if more else b"", name.encode(), value)
    return b"%b%b%b}" % (common, b"," if more and len(common) > 1 else b"", more)
