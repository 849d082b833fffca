"""A clock that the test moves."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """A loop's timers."""

    def __init__(self) -> None:
        self._now_s = 100.0
        self._order = itertools.count()
        self.waiting: list[tuple[float, int, Timer, Callable[[], object]]] = []

    def time(self) -> float:
        return self._now_s

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        timer = Timer()
        heapq.heappush(self.waiting, (when, next(self._order), timer, callback))
        return timer

    def go_on(self, seconds: float) -> None:
        end_s = self._now_s + seconds
        while self.waiting and self.waiting[0][0] <= end_s:
            self._now_s, _, timer, callback = heapq.heappop(self.waiting)
            if not timer.cancelled:
                callback()
        self._now_s = end_s


class Turns:
    """A loop whose clock stands still for a turn."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.due: list[Callable[[], object]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[[], object], /) -> None:
        self.due.append(callback)

    def next(self) -> None:
        self.now_s += 0.001
        due, self.due = self.due, []
        for call in due:
            call()
