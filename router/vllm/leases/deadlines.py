"""Which of thousands of things is due first, most of which are gone before they are due. Pure."""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    """A time for each thing. It may be set again, to the same or a later one.

    What is gone, or has a later time by now, is looked at when its first time has come, so no call costs more than the
    logarithm of what was set since then.
    """

    def __init__(self) -> None:
        self._times: dict[T, int] = {}
        self._heap: list[tuple[int, int, T]] = []
        self._numbers = itertools.count()

    def __getitem__(self, what: T) -> int:
        return self._times[what]

    def __setitem__(self, what: T, at_ms: int) -> None:
        if what not in self._times:
            heapq.heappush(self._heap, (at_ms, next(self._numbers), what))
        self._times[what] = at_ms

    def drop(self, what: T) -> None:
        """Forget its time, if it has one."""
        self._times.pop(what, None)

    def clear(self) -> None:
        """Forget all."""
        self._times.clear()
        self._heap.clear()

    def first(self) -> T | None:
        """What is due first; None: nothing has a time."""
        while self._heap:
            at_ms, _, what = self._heap[0]
            now_at_ms = self._times.get(what)
            if now_at_ms == at_ms:
                return what
            if now_at_ms is None:
                heapq.heappop(self._heap)
            else:
                heapq.heapreplace(self._heap, (now_at_ms, next(self._numbers), what))
        return None

    def first_ms(self) -> int | None:
        """The time of ``first``."""
        first = self.first()
        return None if first is None else self._times[first]
