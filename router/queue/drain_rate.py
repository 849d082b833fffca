"""How fast a queue empties, and from that when a refused client may retry. Pure: time is passed in."""

from __future__ import annotations

from collections import deque

#: How many departures are remembered, and for how many seconds.
MAX_DEPARTURES = 64
MEMORY_S = 60.0
#: Bounds of an estimate, seconds.
MIN_WAIT_S = 1.0
MAX_WAIT_S = 60.0


class DrainRate:
    """Departures from a queue.

    Before the first departure, and when none was in the last ``MEMORY_S``, the estimate is ``MAX_WAIT_S``.
    """

    def __init__(self) -> None:
        self._departures_s: deque[float] = deque(maxlen=MAX_DEPARTURES)

    def left(self, now_s: float) -> None:
        """Note that a request has left the queue for a worker."""
        self._departures_s.append(now_s)

    def wait_s(self, num_waiting: int, now_s: float) -> float:
        """Seconds until ``num_waiting`` requests have left at the present rate, from MIN_WAIT_S to MAX_WAIT_S."""
        if not num_waiting:
            return MIN_WAIT_S
        while self._departures_s and now_s - self._departures_s[0] > MEMORY_S:
            self._departures_s.popleft()
        if not self._departures_s:
            return MAX_WAIT_S
        seconds_each = (now_s - self._departures_s[0]) / len(self._departures_s)
        return min(max(num_waiting * seconds_each, MIN_WAIT_S), MAX_WAIT_S)
