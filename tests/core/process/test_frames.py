"""Frames between processes of one installation."""

from __future__ import annotations

import asyncio
import io

import msgspec
import pytest

from baton_serve.core.process.frames import encode, read, receive

ANY = msgspec.msgpack.Decoder(dict[str, int])
TOO_LONG = (1 << 31).to_bytes(4, "little")


class Message(msgspec.Struct):
    number: int


def fed(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    return reader


async def test_no_reader_waits_for_a_length_that_is_none() -> None:
    with pytest.raises(msgspec.DecodeError, match="a message of 2147483648 bytes"):
        await read(fed(TOO_LONG), ANY)
    with pytest.raises(msgspec.DecodeError, match="a message of 2147483648 bytes"):
        receive(io.BytesIO(TOO_LONG), ANY)


async def test_both_readers_read_what_was_encoded() -> None:
    data = encode(Message(7))
    assert await read(fed(data), ANY) == receive(io.BytesIO(data), ANY) == {"number": 7}
    assert receive(io.BytesIO(data[:-1]), ANY) is None
