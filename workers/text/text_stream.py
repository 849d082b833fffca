"""From sampled tokens to the text that a client gets: detokenizer and stop strings together. Pure.

The text depends on the tokens only, so P and D agree on which part each of them returns: P returns the text of the
first token; D adds the same token, discards its text, and continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.workers.text.stop_strings import StopStrings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton_serve.workers.text.detokenizer import Detokenizer


class TextStream:
    """Add tokens with ``push``, end with ``flush``. Once ``stopped`` is True, no more text is returned.

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
    def stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self._stops.found is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.found

    def push(self, token: int, *, ends: bool = False) -> str:
        """Add a token; returns the text that is now certain. ``ends``: it is a stop token, counted but not
        shown unless ``shows_stop``.
        """
        self.num_tokens += 1
        return self._limit("" if ends and not self.shows_stop else self._detokenizer.push(token))

    def flush(self) -> str:
        """After the last token: return the text that was held back, up to a stop string if there is one."""
        text = self._limit(self._detokenizer.flush())
        return text if self.stopped else text + self._stops.flush()

    def _limit(self, text: str) -> str:
        return text if self.num_tokens < self._min_tokens else self._stops.push(text)
