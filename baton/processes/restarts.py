"""When a child that died is started again. Pure: times are passed in, seconds of one clock."""

from __future__ import annotations

import random
from collections.abc import Callable

#: The first pause before a start, seconds; each further one is twice as long, up to the longest.
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
#: After a child has served for this many seconds, its next death counts as its first one.
STEADY_S = 60.0
#: After this many starts in a row after which the child did not come to serve, there is little hope for it.
MAX_VAIN_STARTS = 5
#: Pauses when there is little hope: loading a model again and again would only slow down the workers that serve.
FIRST_RARE_PAUSE_S = 5.0
LONGEST_RARE_PAUSE_S = 600.0
#: Pauses are lengthened by up to this share, so that children that died together do not load at the same time.
JITTER = 0.2


def _jitter() -> float:
    return 1 + JITTER * random.random()


class Restarts:
    """Decides the pauses before the starts of one child. Each pause is multiplied by what ``stretch`` returns."""

    def __init__(self, stretch: Callable[[], float] = _jitter) -> None:
        self._stretch = stretch
        self._pause_s = FIRST_PAUSE_S
        self._serves_since_s: float | None = None
        self._has_served = False
        self._vain_starts = 0

    @property
    def has_served(self) -> bool:
        """Whether the child was ready at least once."""
        return self._has_served

    @property
    def is_hopeless(self) -> bool:
        """Whether the child is unlikely to serve again by itself: it died before it ever served, or failed too many
        starts since.
        """
        return self._vain_starts >= (MAX_VAIN_STARTS if self._has_served else 1)

    def serves(self, now_s: float) -> None:
        """Note that the child has become ready."""
        if self.is_hopeless:
            self._pause_s = FIRST_PAUSE_S
        self._has_served = True
        self._vain_starts = 0
        self._serves_since_s = now_s

    def died(self, now_s: float) -> float:
        """Note that the child has died; returns the seconds to wait before the next start."""
        since_s, self._serves_since_s = self._serves_since_s, None
        if since_s is None:
            self._vain_starts += 1
        elif now_s - since_s >= STEADY_S:
            self._pause_s = FIRST_PAUSE_S
        pause_s = max(self._pause_s, FIRST_RARE_PAUSE_S) if self.is_hopeless else self._pause_s
        self._pause_s = min(2 * pause_s, LONGEST_RARE_PAUSE_S if self.is_hopeless else LONGEST_PAUSE_S)
        return pause_s * self._stretch()
