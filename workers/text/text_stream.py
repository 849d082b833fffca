"""From sampled tokens to the text a client sees: detokenizer and stop strings in one. Pure.

A function of the token sequence only. So P and D agree on what each of them shows: P shows what the first token
yields, D feeds itself the same token, discards what that yields and goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.text.stop_strings import StopStrings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.text.detokenizer import Detokenizer


class TextStream:
    """Feed tokens with ``push``, end with ``flush``. After ``stopped`` nothing more comes out.

    Stop strings count from the ``min_tokens``-th token on; what earlier tokens say is never a part of one.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str], min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._min_tokens = min_tokens
        self.num_tokens = 0

    @property
    def stopped(self) -> bool:
        """A stop string ended the text."""
        return self._stops.found is not None

    def push(self, token: int, *, ends: bool = False) -> str:
        """Add a token; returns the text that became certain. ``ends``: a stop token, which is counted, not shown."""
        self.num_tokens += 1
        return self._limit("" if ends else self._detokenizer.push(token))

    def flush(self) -> str:
        """The tokens have ended: what was held back, unless that completes a stop string."""
        text = self._limit(self._detokenizer.flush())
        return text if self.stopped else text + self._stops.flush()

    def _limit(self, text: str) -> str:
        return text if self.num_tokens < self._min_tokens else self._stops.push(text)
