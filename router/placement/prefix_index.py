"""Which prompt prefixes each worker was sent, as chunk hashes. Bounded: the least recently sent are evicted first."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrefixIndex:
    """Per worker at most ``max_entries`` hashes (about 150 bytes each). The key of a worker is ``key_of``.

    Invariant: a worker that has a prefix's hash has those of all shorter prefixes. A longer prefix is always touched
    before the shorter ones, so it is older and evicted first. This makes ``longest`` a binary search.
    """

    def __init__(self, max_entries: int) -> None:
        if max_entries < 1:
            raise ValueError("an index needs room for an entry")
        self._max_entries = max_entries
        self._sent: dict[str, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        return sum(len(hashes) for hashes in self._sent.values())

    def note(self, key: str, chunks: Sequence[int], max_entries: int | None = None) -> None:
        """Note that the worker is sent a prompt of these chunks. ``max_entries``: the worker's own, smaller bound."""
        if not chunks:
            return
        hashes = self._sent.setdefault(key, OrderedDict())
        for chunk in reversed(chunks):
            hashes[chunk] = None
            hashes.move_to_end(chunk)
        limit = self._max_entries if max_entries is None else max(1, min(max_entries, self._max_entries))
        while len(hashes) > limit:
            hashes.popitem(last=False)

    def longest(self, key: str, chunks: Sequence[int]) -> int:
        """The number of chunks, from the first on, that the worker was sent before and probably still has."""
        hashes = self._sent.get(key)
        if not hashes:
            return 0
        return bisect_left(chunks, True, key=lambda chunk: chunk not in hashes)

    def forget(self, key: str) -> None:
        """Forget a worker that left."""
        self._sent.pop(key, None)
