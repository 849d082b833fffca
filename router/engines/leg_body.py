"""Puts a leg's body together: what all legs have in common, and a short tail. Pure.

P's ``kv_transfer_params`` and prompts as token ids are spliced in without parsing, since they are long. The body stays
in pieces up to the connection: a long prompt is encoded once for all legs, unless the request waits in between, and is
copied for none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton_serve.core.net.client.connection import Pieces


def opened(fields: dict[str, Any]) -> memoryview:
    """The fields as JSON without the closing brace."""
    return memoryview(orjson.dumps(fields))[:-1]


def whole(fields: dict[str, Any]) -> bytes:
    """The body for a worker that does everything: as the client sent it."""
    return orjson.dumps(fields)


def closed(common: memoryview, tail: dict[str, Any], raw: Sequence[tuple[bytes, Pieces]] = ()) -> Pieces:
    """``common``, from ``opened``, with ``tail`` and with the fields of ``raw``, whose values are JSON already."""
    pieces: list[bytes | memoryview] = [common]
    comma = b"," if len(common) > 1 else b""
    if tail:
        pieces.append(comma + orjson.dumps(tail)[1:-1])
        comma = b","
    for name, value in raw:
        pieces.append(b'%b"%b":' % (comma, name))
        pieces += value
        comma = b","
    pieces.append(b"}")
    return tuple(pieces)
