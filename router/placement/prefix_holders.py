"""Which workers have a chunk: ``PrefixIndex`` the other way round, for routers that know many workers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence, Set


class PrefixHolders:
    """The keys of the workers that hold each chunk. A worker that holds a chunk holds all chunks before it."""

    def __init__(self) -> None:
        #: Most chunks have one holder, whose key takes no more memory here; a set takes 216 bytes.
        self._of: dict[int, str | set[str]] = {}

    def __len__(self) -> int:
        """Number of chunks that have a holder."""
        return len(self._of)

    def add(self, key: str, chunks: Sequence[int]) -> None:
        """Note that the worker holds these chunks, the first ones of a prompt."""
        for chunk in reversed(chunks):
            if not self.add_one(key, chunk):
                return

    def add_one(self, key: str, chunk: int) -> bool:
        """Note that the worker holds the chunk. Returns False if that was known."""
        held = self._of.get(chunk)
        if held is None:
            self._of[chunk] = key
        elif isinstance(held, set):
            if key in held:
                return False
            held.add(key)
        elif held == key:
            return False
        else:
            self._of[chunk] = {held, key}
        return True

    def drop(self, key: str, chunks: Iterable[int]) -> None:
        """Note that the worker holds these chunks no longer."""
        for chunk in chunks:
            held = self._of.get(chunk)
            if held == key:
                del self._of[chunk]
            elif isinstance(held, set):
                held.discard(key)
                if len(held) == 1:
                    self._of[chunk] = held.pop()

    def longest(self, chunks: Sequence[int]) -> int:
        """The number of chunks, from the first on, that any worker holds."""
        return bisect_left(chunks, True, key=lambda chunk: chunk not in self._of)

    def of(self, chunk: int) -> Set[str]:
        """The keys of the workers that hold the chunk."""
        held = self._of.get(chunk, set[str]())
        return held if isinstance(held, set) else {held}
