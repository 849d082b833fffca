"""Frames on the socket between the main process and a rank: 4 bytes little-endian length, then msgpack."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

import msgspec

from baton_serve.core.protocol.steps import FromRank, ToRank
from baton_serve.workers.rank_protocol.errors import FrameError

if TYPE_CHECKING:
    import asyncio
    import socket

#: Far more than any step needs (a prompt of a million tokens has 5 MB), but far less than the maximum of the 4-byte
#: length, so that most corrupted lengths are noticed.
MAX_FRAME_BYTES = 256 * 1024 * 1024

_HEADER = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()
_TO_RANK: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank)
_FROM_RANK: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)
M = TypeVar("M")


def encode(message: ToRank | FromRank) -> bytes:
    """The message as one frame. Raises FrameError if it is too long."""
    body = _ENCODER.encode(message)
    _check_length(len(body))
    return _HEADER.pack(len(body)) + body


def receive(sock: socket.socket) -> ToRank | None:
    """In the rank: wait for the next message. Returns None if the main process closed the socket between two frames.

    Raises FrameError.
    """
    header = _receive_exactly(sock, _HEADER.size, may_end=True)
    if not header:
        return None
    (length,) = _HEADER.unpack(header)
    _check_length(length)
    return _decode(_TO_RANK, _receive_exactly(sock, length))


async def read(stream: asyncio.StreamReader) -> FromRank | None:
    """In the main process: wait for the next message. Returns None if the rank closed the socket, even inside a frame.

    A rank that is killed may leave half a frame, which means only that the rank has ended. Raises FrameError.
    """
    try:
        (length,) = _HEADER.unpack(await stream.readexactly(_HEADER.size))
        _check_length(length)
        body = await stream.readexactly(length)
    except (EOFError, ConnectionError):
        return None
    return _decode(_FROM_RANK, body)


def _check_length(length: int) -> None:
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")


def _receive_exactly(sock: socket.socket, length: int, *, may_end: bool = False) -> bytes | bytearray:
    buffer = bytearray(length)
    view, filled = memoryview(buffer), 0
    while filled < length:
        count = sock.recv_into(view[filled:])
        if count == 0:
            if may_end and filled == 0:
                return b""
            raise FrameError("the connection was closed inside a frame")
        filled += count
    return buffer


def _decode(decoder: msgspec.msgpack.Decoder[M], body: bytes | bytearray) -> M:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise FrameError(f"a frame is not one of ours: {error}") from None
