"""When a child that died is started again. Pure: times are seconds of any one clock, passed in."""

from __future__ import annotations

#: The first pause; each further one is twice as long, up to the longest.
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
#: Who has served this long dies as if for the first time.
STEADY_S = 60.0
#: Starts in a row that never got as far as serving; then nobody tries again.
MAX_VAIN_STARTS = 5


class Restarts:
    """The patience with one child. Who never served has none: starting it again would not help, a person must."""

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._serves_since_s: float | None = None
        self._has_served = False
        self._vain_starts = 0

    @property
    def has_served(self) -> bool:
        """It was ready at least once."""
        return self._has_served

    def serves(self, now_s: float) -> None:
        """It has become ready."""
        self._has_served = True
        self._vain_starts = 0
        self._serves_since_s = now_s

    def died(self, now_s: float) -> float | None:
        """Seconds to wait before the next start; None: give it up."""
        since_s, self._serves_since_s = self._serves_since_s, None
        if since_s is None:
            self._vain_starts += 1
        elif now_s - since_s >= STEADY_S:
            self._pause_s = FIRST_PAUSE_S
        if not self._has_served or self._vain_starts >= MAX_VAIN_STARTS:
            return None
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s
