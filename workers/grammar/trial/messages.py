"""Messages between a worker's main process and the process that tries forms, both from one installation.

Frames: 4 bytes little-endian length, then one msgpack value. The main process sends ``Begin``, then a ``Try`` for each
form; each ``Try`` is answered by ``Tried`` before the next one is sent.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

import msgspec

from core.protocol.openai.structured import Kind
from core.protocol.steps import Vocabulary

if TYPE_CHECKING:
    import asyncio
    from typing import BinaryIO

_HEADER = struct.Struct("<I")
M = TypeVar("M")


class Limits(msgspec.Struct, frozen=True):
    """What one form may take: seconds of a processor, and bytes of memory."""

    cpu_s: float
    memory_bytes: int


class Begin(msgspec.Struct, frozen=True):
    """What forms are tried with. ``vocab_size`` is the model's."""

    vocabulary: Vocabulary
    vocab_size: int
    limits: Limits


class Try(msgspec.Struct, frozen=True):
    """A form to try."""

    kind: Kind
    text: str


class Tried(msgspec.Struct, frozen=True):
    """The form's grammar, or what is wrong, in words for the client.

    ``is_final``: whether the form is to blame, so that trying it again would give the same.
    """

    grammar: str
    error: str = ""
    is_final: bool = True


def encode(message: Begin | Try | Tried) -> bytes:
    """The message as one frame."""
    body = msgspec.msgpack.encode(message)
    return _HEADER.pack(len(body)) + body


async def read(stream: asyncio.StreamReader) -> Tried | None:
    """In the main process: the next answer; None if the process has ended."""
    try:
        (length,) = _HEADER.unpack(await stream.readexactly(_HEADER.size))
        body = await stream.readexactly(length)
    except (EOFError, ConnectionError):
        return None
    return msgspec.msgpack.decode(body, type=Tried)


def receive(stream: BinaryIO, kind: type[M]) -> M | None:
    """In the process: wait for the next message, which is of this kind; None if the main process has ended."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    (length,) = _HEADER.unpack(header)
    body = stream.read(length)
    return None if len(body) < length else msgspec.msgpack.decode(body, type=kind)
