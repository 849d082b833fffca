"""Knows the head of a message by one before it on the same connection that differed in the length of its body. Pure.

A client mostly sends the same headers in all requests of a connection, and a worker in all its answers. What the parser
said of one head holds for the next one, which has the same bytes. docs/hot-path.md has what that saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_NAME: Final = b"content-length"
_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
#: Longer heads are not kept: each connection has memory for one.
MAX_BYTES: Final = 2048
#: Digits of a length. A longer one is left to the parser.
_MAX_DIGITS: Final = 9
#: What follows so many unknown heads is learned seldom: some clients never send the same head twice.
_MANY: Final = 8
_SELDOM: Final = 64


class KnownHead:
    """The head of a connection that was learned last, without the digits of its ``content-length``.

    Ask ``end_in`` of each message. While ``is_wanted``, give ``learn`` the head that was not known.
    """

    __slots__ = ("_after", "_before", "_num_unknown", "digits", "num_body_bytes")

    def __init__(self) -> None:
        #: Before and after the digits. Empty: no head is known.
        self._before = b""
        self._after = b""
        #: Heads in a row that were not known.
        self._num_unknown = 0
        #: The length in the head that ``end_in`` found or ``learn`` took, and as it stands there.
        self.num_body_bytes = 0
        self.digits = b""

    def end_in(self, data: bytes) -> int:
        """The number of bytes of the known head, if ``data`` begins with all of it; 0 for any other data."""
        end = self._end_in(data)
        self._num_unknown = 0 if end else self._num_unknown + 1
        return end

    def _end_in(self, data: bytes) -> int:
        before, after = self._before, self._after
        if not before or not data.startswith(before):
            return 0
        begin = len(before)
        end = _end_of_digits(data, begin)
        if not 0 < end - begin <= _MAX_DIGITS or data[end : end + len(after)] != after:
            return 0
        self.digits = data[begin:end]
        self.num_body_bytes = int(self.digits)
        return end + len(after)

    @property
    def is_wanted(self) -> bool:
        """Whether to learn the next head. Not the first one: many connections have no second one."""
        num_unknown = self._num_unknown
        return 1 < num_unknown <= _MANY or (num_unknown > 0 and num_unknown % _SELDOM == 0)

    def learn(self, data: bytes, names: Sequence[bytes]) -> int:
        """Learn the head with which ``data`` begins, in which a parser found headers with these lower-case ``names``.

        Returns its number of bytes, and 0 for a head that a parser may have read otherwise than line by line, or that
        says in another way than by ``content-length`` where its message ends; then none is known. The caller sees
        to messages that have no body because of their status or method.
        """
        self.forget()
        end = data.find(_HEAD_END) + len(_HEAD_END)
        if not len(_HEAD_END) <= end <= MAX_BYTES or names.count(_NAME) != 1 or b"transfer-encoding" in names:
            return 0
        head = data[:end]
        num_lines = len(names) + 2
        if not head.count(b"\n") == head.count(b"\r") == head.count(_LINE_END) == num_lines:
            return 0
        begin = head.lower().find(_LINE_END + _NAME + b":") + len(_LINE_END + _NAME + b":")
        while head[begin] in b" \t":
            begin += 1
        digits_end = _end_of_digits(head, begin)
        if head[digits_end : digits_end + len(_LINE_END)] != _LINE_END:
            return 0
        self._before, self._after = head[:begin], head[digits_end:]
        if not self._end_in(head):
            self.forget()
            return 0
        return end

    def forget(self) -> None:
        """Know no head."""
        self._before = self._after = b""


def _end_of_digits(data: bytes, begin: int) -> int:
    end = begin
    while end < len(data) and 48 <= data[end] <= 57:  # 0 to 9
        end += 1
    return end
