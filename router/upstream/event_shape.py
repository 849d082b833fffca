"""Knows the next event of a stream by those before it: nearly all differ in one string. Pure.

To look into an event (is it whole, is it one, is it an error?) takes several searches. An event that begins and ends as
another one did, with a text of its own between the same quotes, needs none of them.
"""

from __future__ import annotations

from typing import Final

from router.upstream.events import END

_QUOTE: Final = ord('"')
_NEWLINE: Final = ord("\n")
#: The one text with which an event might be an error: see ``worker_errors.LOOKS_FAILED``.
_ERROR: Final = b"error"
#: Before the text of an event, as engines write it; which of them an event has is no matter for what ``fits`` says.
_KEYS: Final = (b'"content":"', b'"text":"', b'"reasoning_content":"', b'"reasoning":"', b'"arguments":"')
#: Bytes of a text. To look at a longer one byte by byte takes longer than searches do.
_MAX_TEXT_BYTES: Final = 64
#: Events that did not fit and are learned from. A stream whose events differ in more than a text never fits.
_MAX_LESSONS: Final = 16


class EventShape:
    """What the events of one stream have in common."""

    __slots__ = ("_head", "_last", "_num_lessons", "_tail")

    def __init__(self) -> None:
        #: The bytes before the text, with its first quote, and those behind it, with its last; empty: not known yet.
        self._head = self._tail = b""
        #: The last event that was learned from; empty: none.
        self._last = b""
        self._num_lessons = 0

    def fits(self, data: bytes) -> bool:
        """Whether ``data``, which is not empty, is one whole event of a single line, neither a comment nor an error.

        Other data may be that as well; whoever asked has to look.
        """
        if data == self._last:
            return True
        head, tail = self._head, self._tail
        begin, end = len(head), len(data) - len(tail)
        if not (begin and begin <= end <= begin + _MAX_TEXT_BYTES):
            return False
        if not (data.startswith(head) and data.endswith(tail)):
            return False
        for at in range(begin, end):
            if data[at] in (_QUOTE, _NEWLINE):
                return False
        return end - begin != len(_ERROR) or data[begin:end] != _ERROR

    def learn(self, event: bytes) -> None:
        """Learn from an event that is what ``fits`` is to find, and did not fit."""
        if self._num_lessons == _MAX_LESSONS or event.find(b"\n") != len(event) - len(END):
            return
        self._num_lessons += 1
        self._last = event
        for key in _KEYS:
            begin = event.find(key) + len(key)
            if begin >= len(key):
                end = event.find(b'"', begin)
                if end >= 0:
                    self._head, self._tail = event[:begin], event[end:]
                return
