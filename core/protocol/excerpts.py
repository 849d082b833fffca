"""How much of a client's text errors and log lines repeat."""

from __future__ import annotations

#: Enough for a client to recognize its text.
MAX_CHARS = 200


def excerpt(sent: str) -> str:
    """The beginning of ``sent``, with an ellipsis if there is more, in characters that are safe to print."""
    shown = sent[: MAX_CHARS + 1]
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown)
    return shown if len(shown) <= MAX_CHARS else f"{shown[:MAX_CHARS]}..."
