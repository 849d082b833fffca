"""How many retries a router may make for all requests together. Pure: time is passed in.

When many workers fail at once, retries would double and treble the load of those that are left. So retries are at most
``fraction`` of the requests that came in the last seconds, plus ``floor_per_s``, without which a quiet router could not
migrate the streams of one dead worker.
"""

from __future__ import annotations

#: Seconds that are counted, in steps of one.
WINDOW_S = 10


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
        """A request came. ``now_s`` is any monotonic clock."""
        self._requests[self._slot(now_s)] += 1

    def take(self, now_s: float) -> bool:
        """Spend one retry; False: the budget is spent."""
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
