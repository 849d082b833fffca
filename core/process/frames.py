"""Frames on a stream socket between two processes of one installation: 4 bytes little-endian length, then one msgpack
value. Both ends are trusted.
"""

from __future__ import annotations

import asyncio
import struct
from typing import BinaryIO, TypeVar

import msgspec

_HEADER = struct.Struct("<I")
#: Most bytes of one message. A larger length means that the stream is corrupt.
_MAX_BYTES = 256 << 20
_ENCODER = msgspec.msgpack.Encoder()
M = TypeVar("M")


def encode(message: msgspec.Struct) -> bytes:
    """The message as one frame."""
    body = _ENCODER.encode(message)
    return _HEADER.pack(len(body)) + body


async def read(stream: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[M]) -> M | None:
    """Wait for the next message; None once the other end has closed, even inside a frame.

    Raises msgspec.DecodeError.
    """
    try:
        length = _length(await stream.readexactly(_HEADER.size))
        return decoder.decode(await stream.readexactly(length))
    except (EOFError, ConnectionError):
        return None


def receive(stream: BinaryIO, decoder: msgspec.msgpack.Decoder[M]) -> M | None:
    """As ``read``, for a process without an event loop."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    length = _length(header)
    body = stream.read(length)
    return None if len(body) < length else decoder.decode(body)


def _length(header: bytes) -> int:
    length: int = _HEADER.unpack(header)[0]
    if length > _MAX_BYTES:
        raise msgspec.DecodeError(f"a message of {length} bytes")
    return length
