"""Where the arguments of a call end. Pure."""

from __future__ import annotations

import re

#: What matters inside a string, and outside of one.
_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')
_BEGINS = re.compile(r"\s*[{\[]")


class JsonEnd:
    """Follows the text of one JSON object or array, piece by piece, to its last character. It does not check it.

    A text that begins otherwise is no JSON and has no end.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self._is_json: bool | None = None
        #: Whether all of it has come.
        self.ended = False

    @property
    def begun(self) -> bool:
        """Whether anything has come but spaces."""
        return self._is_json is not None

    def inside(self, text: str) -> str:
        """Add text; returns what of it is not behind the end."""
        if self.ended or not text:
            return ""
        if self._is_json is None and not text.isspace():
            self._is_json = _BEGINS.match(text) is not None
        return text[: self._end_in(text)] if self._is_json else text

    def _end_in(self, text: str) -> int:
        """How many characters of the text are not behind the end."""
        at = 0
        if self._escaped and text:
            self._escaped, at = False, 1
        while match := (_IN_STRING if self._in_string else _OUTSIDE).search(text, at):
            at = match.end()
            match match[0]:
                case "\\":
                    self._escaped = at == len(text)
                    at += 1
                case '"':
                    self._in_string = not self._in_string
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if not self._depth:
                        self.ended = True
                        return at
        return len(text)
