"""Which tokens would complete a sequence of tokens that the output may not have. Pure."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ROOT = 0


class BadWords:
    """The banned words, and how far into which of them the output is.

    A word that begins in the prompt is none of the output's words, as with vLLM. Words with the same beginning share
    the nodes of a tree, so a token costs as many look-ups as the output is amid beginnings of different lengths.
    """

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        self._next: dict[tuple[int, int], int] = {}
        self._last: dict[int, array[int]] = {}
        for word in words:
            node = _ROOT
            for token in word[:-1]:
                node = self._next.setdefault((node, token), len(self._next) + 1)
            self._last.setdefault(node, array("q")).append(word[-1])
        self._amid = [_ROOT]

    def append(self, token: int) -> None:
        """The output has one token more."""
        reached = (self._next.get((node, token)) for node in self._amid)
        self._amid = [_ROOT, *(node for node in reached if node is not None)]

    def completing(self) -> array[int]:
        """The last token of each word whose other tokens are the last of the output."""
        found = array("q")
        for node in self._amid:
            if node in self._last:
                found += self._last[node]
        return found
