"""From sampled tokens to the text that a client gets: detokenizer and stop strings together. Pure.

The text depends on the tokens only, so P and D agree on which part each of them returns: P returns the text of the
first token; D adds the same token, discards its text, and continues.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton_serve.workers.text.detokenizer import Detokenizer


class StopStrings:
    """Finds stop strings in text that arrives in pieces: the result depends on the text only, not on the pieces.

    Add text with ``push``; once ``found`` is set, no more text is returned.

    The text ends at the first character that completes any stop string. It is cut where that stop string begins (the
    longest one, if several end there), or behind it if it is to be shown. Text that may still become a stop string is
    held back.
    """

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


class TextStream:
    """Add tokens with ``push``, end with ``flush``. Once there is a ``stop_string``, no more text is returned.

    Stop strings are searched from the ``min_tokens``-th token on; the text of earlier tokens is never part of a match.
    ``shows_stop``: the text ends with the stop string or stop token that ended it.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str], min_tokens: int = 0, *, shows_stop: bool = False
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops, shown=shows_stop)
        self.shows_stop = shows_stop
        self._min_tokens = min_tokens
        self.num_tokens = 0

    @property
    def stop_string(self) -> str | None:
        return self._stops.found

    def push(self, token: int, *, ends: bool = False) -> str:
        """Add a token; returns the text that is now certain. ``ends``: it is a stop token, counted but not
        shown unless ``shows_stop``.
        """
        self.num_tokens += 1
        return self._limit("" if ends and not self.shows_stop else self._detokenizer.push(token))

    def flush(self) -> str:
        """After the last token: return the text that was held back, up to a stop string if there is one."""
        return self._limit(self._detokenizer.flush()) + self._stops.flush()

    def _limit(self, text: str) -> str:
        return text if self.num_tokens < self._min_tokens else self._stops.push(text)
