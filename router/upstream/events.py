"""Cuts the bytes of a worker's stream into whole events. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from core.protocol.errors import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What an event ends with.
END: Final = b"\n\n"
#: The last event of an answer.
DONE_EVENT: Final = b"data: [DONE]\n\n"
#: How the line of an event with its data begins. A space may follow.
DATA: Final = b"data:"
#: Largest event of a worker's stream, bytes, unless ``max_event_bytes`` says otherwise.
MAX_EVENT_BYTES: Final = 1 << 20


def data_of(event: bytes) -> bytes | None:
    """The data of one event; None: it has none, as a comment. Workers send it in one line."""
    for line in event.split(b"\n"):
        if line.startswith(DATA):
            return line[len(DATA) :].strip()
    return None


def with_data(event: bytes, data: bytes) -> bytes:
    """The event with other data; empty: with none, and if it had nothing else nothing is left."""
    others = [line for line in event.split(b"\n") if not line.startswith(DATA)]
    return b"\n".join([*others, DATA + b" " + data] if data else others)


def named_event(body: dict[str, Any]) -> bytes:
    """An event whose name is the ``type`` of its body, as those of ``/v1/responses`` and ``/v1/messages``."""
    return b"event: %b\n%b %b\n\n" % (body["type"].encode(), DATA, orjson.dumps(body))


def by_few(events: bytes, num: int) -> Iterator[bytes]:
    """Whole events, ``num`` at a time."""
    found = events.split(END)[:-1]
    for begin in range(0, len(found), num):
        yield END.join((*found[begin : begin + num], b""))


class EventTooLarge(UpstreamError):
    """An event is larger than the router buffers. It is no CallError, because no worker is at fault, and another
    worker's event would be as large.
    """

    def __init__(self, what: str, max_bytes: int) -> None:
        super().__init__(
            f"{what} larger than this router takes: {max_bytes} bytes (max_event_bytes).", code="event_too_large"
        )


class EventCutter:
    """Cuts one stream. Each byte is searched once, even if an event comes in many pieces."""

    __slots__ = ("_max_bytes", "_partial")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._partial = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The events that are whole now. Raises EventTooLarge, independent of the pieces in which the stream comes."""
        partial = self._partial
        if not partial and data.endswith(END) and data[-3:-2] != b"\n":  # nearly always
            if len(data) > self._max_bytes:
                self._check_each(data)
            return data
        unseen = max(0, len(partial) - 1)
        partial += data
        found = partial.rfind(END, unseen)
        whole = b""
        if found >= 0:
            end = found + len(END)
            num_newlines = end - len(partial[:end].rstrip(b"\n"))
            end -= num_newlines % len(END)  # if the number is odd, the last newline begins the next event
            whole = bytes(partial[:end])
            del partial[:end]
        if len(whole) > self._max_bytes:
            self._check_each(whole)
        if len(partial) > self._max_bytes:
            raise self._too_large()
        return whole

    def may_be_one(self, data: bytes) -> bool:
        """Whether ``data`` begins where an event begins, and is not too large for one."""
        return not self._partial and len(data) <= self._max_bytes

    def rest(self) -> bytes:
        """The bytes that have come of the next event."""
        return bytes(self._partial)

    def _check_each(self, events: bytes) -> None:
        """Check each event, since together they exceed the limit."""
        begin = 0
        while begin < len(events):
            end = events.find(END, begin) + len(END)
            if end - begin > self._max_bytes:
                raise self._too_large()
            begin = end

    def _too_large(self) -> EventTooLarge:
        return EventTooLarge("An event of the answer is", self._max_bytes)
