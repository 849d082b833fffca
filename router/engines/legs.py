"""What P and D are sent for a request. Pure.

A leg's body is what all legs have in common, and a short tail. P's ``kv_transfer_params`` and prompts as token ids are
spliced in without parsing, since they are long. The body stays in pieces up to the connection: a long prompt is encoded
once for all legs, unless the request waits in between, and is copied for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from baton_serve.core.net.client.connection import Pieces


class PrefillLeg:
    """What P is sent. ``hand_off``: P is asked to keep the blocks for a D.

    ``asked_ms``: when it was made, by the clock of the engine's leases, ms: the prefill ends later. None: no lease
    counts from it.
    """

    __slots__ = ("asked_ms", "body", "hand_off")

    def __init__(self, body: bytes | Pieces, *, hand_off: bool, asked_ms: int | None = None) -> None:
        self.body = body
        self.hand_off = hand_off
        self.asked_ms = asked_ms

    def __repr__(self) -> str:
        return "<PrefillLeg with hand-off>" if self.hand_off else "<PrefillLeg>"


class DecodeLeg:
    """What D is sent. ``names_tokens``: D is asked for the ids of its tokens, so that another worker can continue.

    ``once``: it must not be sent again when the connection breaks. Where several servers share an address, a second one
    might read blocks that P has freed, because the first one had read them.
    """

    __slots__ = ("body", "headers", "names_tokens", "once")

    def __init__(
        self, headers: tuple[tuple[str, str], ...], body: bytes | Pieces, *, names_tokens: bool, once: bool = False
    ) -> None:
        self.headers = headers
        self.body = body
        self.names_tokens = names_tokens
        self.once = once

    def __repr__(self) -> str:
        return f"<DecodeLeg, names tokens: {self.names_tokens}, once: {self.once}>"


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
