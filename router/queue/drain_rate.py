"""How fast a queue moves, and when to ask again therefore. Pure: time is passed in."""

from __future__ import annotations

from collections import deque

#: Departures remembered, and for how long, seconds.
MAX_DEPARTURES = 64
MEMORY_S = 60.0
#: Bounds of an estimate, seconds.
MIN_WAIT_S = 1.0
MAX_WAIT_S = 60.0


class DrainRate:
    """Departures of a queue. Before the first, and when it stands, the longest wait is what is estimated."""

    def __init__(self) -> None:
        self._departures_s: deque[float] = deque(maxlen=MAX_DEPARTURES)

    def left(self, now_s: float) -> None:
        """Somebody has got what it waited for."""
        self._departures_s.append(now_s)

    def wait_s(self, num_waiting: int, now_s: float) -> float:
        """Until so many have left at the pace of late; within the bounds."""
        if not num_waiting:
            return MIN_WAIT_S
        while self._departures_s and now_s - self._departures_s[0] > MEMORY_S:
            self._departures_s.popleft()
        if not self._departures_s:
            return MAX_WAIT_S
        seconds_each = (now_s - self._departures_s[0]) / len(self._departures_s)
        return min(max(num_waiting * seconds_each, MIN_WAIT_S), MAX_WAIT_S)
