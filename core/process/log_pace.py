"""Limits how often a log line is repeated that any client can cause, so that clients cannot fill the log."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds between two lines of one key.
PERIOD_S = 60.0
#: Keys that are remembered; the oldest is forgotten first.
MAX_KEYS = 1000


class OncePerMinute:
    """Allows one line per key and minute, and counts what happens in between."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self._clock = clock
        #: By key: when a line was last allowed, and how many events came since.
        self._last: dict[str, tuple[float, int]] = {}

    def due(self, key: str = "") -> int:
        """Note one more event. Returns 0 unless a line is due, else the number of events since the last line."""
        now_s = self._clock()
        last_s, num_since = self._last.get(key, (now_s - PERIOD_S, 0))
        if now_s - last_s < PERIOD_S:
            self._last[key] = last_s, num_since + 1
            return 0
        self._last.pop(key, None)
        if len(self._last) >= MAX_KEYS:
            self._last.pop(next(iter(self._last)))
        self._last[key] = now_s, 0
        return num_since + 1
