"""The number of retries that a router may make for all its requests together. Pure: time is passed in.

When many workers fail at once, retries would double or treble the load of the workers that are left. So retries are at
most ``fraction`` of the requests of the last ``WINDOW_S`` seconds, plus ``floor_per_s``, without which a quiet router
could not migrate the streams of one dead worker.
"""

from __future__ import annotations

from typing import Final

#: Length of the counted window in seconds, in steps of one second.
WINDOW_S: Final = 10


class RetryBudget:
    """Requests and retries of the last ``WINDOW_S`` seconds."""

    __slots__ = ("_floor", "_fraction", "_requests", "_retries", "_second")

    def __init__(self, fraction: float, floor_per_s: float) -> None:
        self._fraction = fraction
        self._floor = floor_per_s * WINDOW_S
        self._second = 0
        self._requests = [0] * WINDOW_S
        self._retries = [0] * WINDOW_S

    def __repr__(self) -> str:
        return f"<RetryBudget {sum(self._retries)} retries of {sum(self._requests)} requests>"

    def request(self, now_s: float) -> None:
        """Count a new request. ``now_s`` is of any monotonic clock."""
        self._requests[self._slot(now_s)] += 1

    def take(self, now_s: float) -> bool:
        """Take one retry from the budget. Returns False if none is left."""
        slot = self._slot(now_s)
        if sum(self._retries) + 1 > self._floor + self._fraction * sum(self._requests):
            return False
        self._retries[slot] += 1
        return True

    def _slot(self, now_s: float) -> int:
        second = int(now_s)
        for passed in range(max(self._second + 1, second - WINDOW_S + 1), second + 1):
            self._requests[passed % WINDOW_S] = self._retries[passed % WINDOW_S] = 0
        self._second = max(self._second, second)
        return self._second % WINDOW_S
