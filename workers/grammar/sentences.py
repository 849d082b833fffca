"""What llguidance says of a grammar, in words for the client who wrote it."""

from __future__ import annotations

import re

#: What is for the library's own programmers.
_MARKS = re.compile(r"</?non-verbose/?>")
#: Where it is in the grammar that Baton writes around a schema or a regular expression; the client has not seen that.
_NOT_THE_CLIENTS = re.compile(r"at \d+\(\d+\): (?:failed to compile JSON schema: |(?=invalid regex))")
#: A number begins only where a word does: clients write long ones, and each digit would begin one again.
_PLACE = re.compile(r"(?:at )?\b(\d++)\((\d++)\): ")
_DETAILS_CHARS = 300
TOO_COMPLEX = "it is too large or too complex to be followed"
#: How what the library says begins, and what that means.
_KNOWN = (
    (re.compile(r"NoExtensionBias"), "no answer can ever complete it"),
    (re.compile(r"(?:lexer error: )?too many expressions constructed|lexer error"), TOO_COMPLEX),
    (re.compile(r"Too many items|Current row has \d+ items|fuel exhausted"), TOO_COMPLEX),
)


def in_words(text: str) -> str:
    """One sentence of what is wrong, without a capital and a full stop. Empty for an empty text."""
    text = _MARKS.sub("", text).strip()
    for pattern, words in _KNOWN:
        if pattern.match(text):
            return words
    text = _PLACE.sub(r"line \1, column \2: ", _NOT_THE_CLIENTS.sub("", text, count=1), count=1)
    line = _first(text.splitlines() or [""])
    return line if len(line) <= _DETAILS_CHARS else f"{line[:_DETAILS_CHARS]}..."


def _first(lines: list[str]) -> str:
    """The first line, and the reason of an error that has several, as those of regular expressions have."""
    reasons = [line.removeprefix("error: ") for line in lines[1:] if line.startswith("error: ")]
    return " ".join([lines[0].strip(), *reasons[:1]])
