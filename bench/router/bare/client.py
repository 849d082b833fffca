"""A client's connection, and the two legs of its request."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.router.bare.engine import Engine, Leg

END_OF_HEAD: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\ncontent-length: *(\d+)", re.IGNORECASE)
_ASK: Final = b'{"kv_transfer_params":{"do_remote_decode":true},'
_PARAMS: Final = b'"kv_transfer_params":'
_LAST_CHUNK: Final = b"0\r\n\r\n"
#: Shorter requests are joined, as Baton joins them.
_JOINED_BYTES: Final = 16 << 10


class Client(asyncio.Protocol):
    """Has one request at a time: what a client sends ahead is not understood."""

    def __init__(self, prefill: Iterator[Engine], decode: Iterator[Engine]) -> None:
        """The iterators say whose turn it is."""
        self._prefill = prefill
        self._decode = decode
        self._line = self._body = b""
        #: The part of a message that has come: of a request, or of P's answer.
        self._data = b""
        self._asks_p = False
        #: The bytes of D's answer that are to come; None: it is in chunks.
        self._num_bytes_left: int | None = None
        #: The last bytes of an answer in chunks.
        self._tail = b""
        #: Whether the head of D's answer has come: engines write it in one piece.
        self._has_begun = False
        self.leg: Leg | None = None
        self.is_gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True
        if self.leg is not None:
            self.leg.abort()

    def data_received(self, data: bytes) -> None:
        message = self._whole(data)
        if message is None:
            return
        head, self._body = message
        self._line = head.partition(b"\r\n")[0]
        self._asks_p = True
        next(self._prefill).ask(self._asked(_ASK), self)

    def take(self, data: bytes) -> bool:
        """Collect P's answer until it is whole; pass on D's as it comes."""
        if self._asks_p:
            return self._take_from_p(data)
        self._transport.write(data)
        if not self._has_begun:
            self._has_begun = True
            found = split(data)
            self._num_bytes_left = found[1] if found is not None and found[1] else None
        if self._num_bytes_left is not None:
            self._num_bytes_left -= len(data)
            ends = not self._num_bytes_left
        else:
            self._tail = (self._tail + data[-len(_LAST_CHUNK) :])[-len(_LAST_CHUNK) :]
            ends = self._tail == _LAST_CHUNK
        if ends:
            self.leg = None
        return ends

    def lose(self) -> None:
        """Close: there will be no answer."""
        self.leg = None
        self._transport.abort()

    def _take_from_p(self, data: bytes) -> bool:
        message = self._whole(data)
        if message is None:
            return False
        _, answer = message
        self._tail = b""
        self._asks_p = self._has_begun = False
        self.leg = None
        next(self._decode).ask(self._asked(b"{%b," % answer[answer.index(_PARAMS) : -1]), self)
        return True

    def _whole(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The head and the body of the message that ``data`` completes; None: more is to come."""
        data = self._data + data if self._data else data
        found = split(data)
        if found is None or len(data) < found[1]:
            self._data = data
            return None
        self._data = b""
        head, num_bytes = found
        return head, data[len(head) + len(END_OF_HEAD) : num_bytes]

    def _asked(self, start: bytes) -> tuple[bytes | memoryview, ...]:
        """The request to an engine, whose body is ``start`` and then the client's."""
        num_bytes = len(start) + len(self._body) - 1
        line = b"%b\r\nhost: engine\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        head, rest = line % (self._line, num_bytes), memoryview(self._body)[1:]
        return (b"".join((head, start, rest)),) if num_bytes < _JOINED_BYTES else (head, start, rest)


def split(data: bytes) -> tuple[bytes, int] | None:
    """The head, and how many bytes the whole message has: 0, if the head does not say. None: the head is not whole."""
    end = data.find(END_OF_HEAD)
    if end < 0:
        return None
    head, length = data[:end], _LENGTH.search(data, 0, end)
    return head, 0 if length is None else end + len(END_OF_HEAD) + int(length[1])
