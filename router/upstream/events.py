"""Cuts the bytes of a worker's stream into whole events. Pure.

Workers may write all that the grammar of event streams allows (WHATWG HTML, 9.2.6): lines that end with CR, LF or both,
a byte order mark, comments, fields without a space behind the colon, data in several lines, several blank lines. What
the cutter returns has LF at the end of each line, so all other code looks for ``END`` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

from baton_serve.core.protocol.errors import UpstreamError

#: What an event ends with.
END: Final = b"\n\n"
#: What may stand before the first event.
BOM: Final = b"\xef\xbb\xbf"
_CR: Final = b"\r"
_LF: Final = b"\n"
_NEWLINE: Final = ord("\n")
#: Blank lines behind an event, as far as they are too many.
_THREE_ENDS: Final = b"\n\n\n"
_BLANK_LINES: Final = re.compile(rb"\n{3,}")
#: The last event of an answer.
DONE_EVENT: Final = b"data: [DONE]\n\n"
#: How a line of an event with its data begins. A space may follow.
DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
#: Largest event of a worker's stream, bytes, unless ``max_event_bytes`` says otherwise.
MAX_EVENT_BYTES: Final = 1 << 20


def data_of(event: bytes) -> bytes | None:
    """The data of one event, its lines joined; None: it has none, as a comment."""
    found = [line[len(DATA) :].removeprefix(b" ") for line in event.split(_LF) if _is_data(line)]
    if len(found) == 1:  # nearly always
        return found[0]
    return _LF.join(found) if found else None


def _is_data(line: bytes) -> bool:
    return line.startswith(DATA) or line == DATA[:-1]


def is_done(event: bytes) -> bool:
    """Whether one event is the last of an answer, however its line is written."""
    data = data_of(event) if event.find(_DONE) >= 0 else None
    return data is not None and data.strip() == _DONE


def ends_with_done(events: bytes) -> bool:
    """Whether nothing but comments follows the last event of an answer."""
    return next((is_done(event) for event in reversed(events.split(END)) if data_of(event) is not None), False)


def with_data(event: bytes, data: bytes) -> bytes:
    """The event with other data; empty: with none, and if it had nothing else nothing is left."""
    lines = [line for line in event.split(_LF) if not _is_data(line)]
    if data:
        lines += [DATA + b" " + line for line in data.split(_LF)]
    return _LF.join(lines)


def named_event(body: dict[str, Any]) -> bytes:
    """An event whose name is the ``type`` of its body, as at ``/v1/responses`` and ``/v1/messages``."""
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
    """Cuts one stream. Each byte is searched once, even if an event comes in many pieces.

    Other ends of lines, the byte order mark and superfluous blank lines are replaced; all other bytes stay.
    """

    __slots__ = ("_is_after_cr", "_is_begun", "_max_bytes", "_partial")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES, *, is_begun: bool = False) -> None:
        """``is_begun``: another cutter has had the beginning of the stream."""
        self._max_bytes = max_bytes
        self._partial = bytearray()
        #: Whether no byte order mark can come any more.
        self._is_begun = is_begun
        #: Whether the last byte was a CR: a LF behind it ends no further line.
        self._is_after_cr = False

    def feed(self, data: bytes) -> bytes:
        """The events that are whole now. An event may begin with blank lines, and ends with ``END``.

        Raises EventTooLarge, independent of the pieces in which the stream comes.
        """
        if not self._partial and _is_usual(data):
            self._is_begun = True
            whole = data
        else:
            whole = self._cut(self._with_lf(data))
        if len(whole) > self._max_bytes:
            self._check_each(whole)
        if len(self._partial) > self._max_bytes:
            raise self._too_large()
        return whole

    def _cut(self, data: bytes) -> bytes:
        partial = self._partial
        unseen = max(0, len(partial) - 1)
        partial += data
        if not self._is_begun:
            if len(partial) < len(BOM):
                return b""
            self._is_begun = True
            if partial.startswith(BOM):
                del partial[: len(BOM)]
                unseen = 0
        if partial and partial[0] == _NEWLINE:
            del partial[: len(partial) - len(partial.lstrip(_LF))]
            unseen = 0
        found = partial.rfind(END, unseen)
        if found < 0:
            return b""
        whole = bytes(partial[: found + len(END)])
        del partial[: found + len(END)]
        return _BLANK_LINES.sub(END, whole) if whole.find(_THREE_ENDS) >= 0 else whole  # a search costs far less

    def _with_lf(self, data: bytes) -> bytes:
        """``data`` with other ends of lines."""
        if self._is_after_cr and data.startswith(_LF):
            data = data[1:]
        self._is_after_cr = data.endswith(_CR)
        return data.replace(b"\r\n", _LF).replace(_CR, _LF) if data.find(_CR) >= 0 else data

    def rest(self) -> bytes:
        """The bytes that have come of the next event, for another cutter."""
        rest = bytes(self._partial)
        return rest[:-1] + _CR if rest and self._is_after_cr else rest

    def _check_each(self, events: bytes) -> None:
        """Check each event, since together they exceed the limit."""
        begin = 0
        while begin < len(events):
            while events[begin] == _NEWLINE:
                begin += 1
            end = events.find(END, begin) + len(END)
            if end - begin > self._max_bytes:
                raise self._too_large()
            begin = end

    def _too_large(self) -> EventTooLarge:
        return EventTooLarge("An event of the answer is", self._max_bytes)


def _is_usual(data: bytes) -> bool:
    """Whether ``data`` is whole events with LF alone, as nearly always."""
    return (
        data.endswith(END)
        and data[-3:-2] != _LF
        and data[0] != _NEWLINE
        and data[0] != BOM[0]
        and data.find(_CR) < 0  # ``in`` would first look for a number
    )
