"""Finds stop strings in text that arrives in pieces. Pure: the result depends on the text only, not on the pieces.

The text ends at the first character that completes any stop string. It is cut where that stop string begins (the
longest one, if several end there), or behind it if it is to be shown. Text that may still become a stop string is held
back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopStrings:
    """Add text with ``push``; once ``found`` is set, no more text is returned."""

    def __init__(self, stops: Sequence[str], *, shown: bool = False) -> None:
        self._stops = tuple(stops)
        self._shown = shown
        self._held = ""
        #: The stop string that ended the text.
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Add text; returns the part that is certain to be before any stop string."""
        if self.found is not None:
            return ""
        if not self._stops:
            return text
        num_held, text = len(self._held), self._held + text
        match = self._earliest(text, num_held)
        if match is not None:
            self.found, start = match
            self._held = ""
            return text[: start + len(self.found)] if self._shown else text[:start]
        keep = self._possible_prefix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """After the end of the text: return the text that was held back, which contains no stop string."""
        held, self._held = self._held, ""
        return held

    def _earliest(self, text: str, num_held: int) -> tuple[str, int] | None:
        """The stop string that is complete first, and the index at which it begins. None ends in the text held back."""
        found = ((text.find(stop, max(0, num_held - len(stop))), stop) for stop in self._stops)
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return stop, start

    def _possible_prefix(self, text: str) -> int:
        """The length of the longest suffix of ``text`` that is a prefix of a stop string."""
        longest = max(map(len, self._stops)) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return len(text) - start
        return 0
