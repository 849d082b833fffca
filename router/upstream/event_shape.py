"""Knows the next event of a stream by one before it: nearly all differ in one string. Pure.

To look into an event (is it whole, is it one, is it an error?) takes several searches. An event that begins and ends as
another one did, with a text of its own between the same quotes, needs none of them.
"""

from __future__ import annotations

from typing import Final

from baton_serve.router.upstream.events import END

_QUOTE: Final = ord('"')
_NEWLINE: Final = ord("\n")
_RETURN: Final = ord("\r")
_BACKSLASH: Final = ord("\\")
#: The one text with which an event might be an error: see ``worker_errors.LOOKS_FAILED``.
_ERROR: Final = b"error"
#: Before the text of an event, as engines write it. They only tell what to learn: ``fits`` proves what it says whatever
#: is between the quotes.
_KEYS: Final = (b'"content":"', b'"text":"', b'"reasoning_content":"', b'"reasoning":"', b'"arguments":"')
#: What has the same text again, in events that name reasoning twice, for clients of either name.
_FIRST: Final = b'"reasoning_content":"'
_AGAIN: Final = b'"reasoning":"'
#: Bytes of a text that are looked at one by one. Compiled, that is cheaper than two searches; interpreted, only of less
#: than ten.
_MAX_TEXT_BYTES: Final = 32
#: Times that another shape is learned. A stream whose events all have another one, as with a count in it, is given up.
_MAX_LESSONS: Final = 16


class EventShape:
    """What the events of one stream have in common."""

    __slots__ = ("_head", "_middle", "_num_lessons", "_tail")

    def __init__(self) -> None:
        #: The bytes before the text, with its first quote, and those behind it, with its last; empty: not known yet.
        self._head = self._tail = b""
        #: The bytes between the text and the same text once more; empty: the text comes once.
        self._middle = b""
        self._num_lessons = 0

    def fits(self, data: bytes) -> bool:
        """Whether ``data`` is one whole event of a single line, neither a comment nor an error.

        False says nothing: the caller has to look into the data then.
        """
        if self._middle:
            data = self._with_one_text(data)
        head, tail = self._head, self._tail
        begin, end = len(head), len(data) - len(tail)
        if not (begin and begin <= end <= begin + _MAX_TEXT_BYTES):
            return False
        if not (data.startswith(head) and data.endswith(tail)):
            return False
        for at in range(begin, end):
            if data[at] in (_QUOTE, _NEWLINE, _RETURN):
                return False
        return end - begin != len(_ERROR) or data[begin:end] != _ERROR

    def _with_one_text(self, data: bytes) -> bytes:
        """``data`` without what is between its texts and the second of them; nothing if that is not the same."""
        begin, in_texts = len(self._head), len(data) - len(self._head) - len(self._middle) - len(self._tail)
        if in_texts < 0 or in_texts > 2 * _MAX_TEXT_BYTES or in_texts % 2:
            return b""
        end = begin + in_texts // 2
        again = self._middle + data[begin:end]
        return data[:end] + data[end + len(again) :] if data[end : end + len(again)] == again else b""

    def learn(self, event: bytes) -> None:
        """Learn from an event that was found to be shown, and no error."""
        if self._num_lessons == _MAX_LESSONS or event.find(b"\n") != len(event) - len(END):
            return
        for key in _KEYS:
            begin = event.find(key) + len(key)
            if begin < len(key):
                continue
            end = event.find(b'"', begin)
            if end == begin:  # an empty text: the next key may have one
                continue
            if end > begin and event[end - 1] != _BACKSLASH:  # else the quote is in the text
                again = event.find(_AGAIN + event[begin : end + 1], end) + len(_AGAIN) if key == _FIRST else 0
                if again > len(_AGAIN):
                    self._keep(event[:begin], event[end:again], event[again + end - begin :])
                else:
                    self._keep(event[:begin], b"", event[end:])
            return

    def _keep(self, head: bytes, middle: bytes, tail: bytes) -> None:
        if head != self._head or middle != self._middle or tail != self._tail:
            self._num_lessons += 1
            self._head, self._middle, self._tail = head, middle, tail
