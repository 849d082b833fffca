"""When to send a step ahead: shortly before the ranks end the one that they execute.

Sent earlier it would be as good for the ranks, but a request that comes meanwhile would wait for one step more.
"""

from __future__ import annotations

from collections import deque

#: The shortest of this many steps tells how long the next one takes at least.
NUM_STEPS = 8
#: A step is sent ahead so long before the expected end: time for the main process to wake up, plan and send.
MARGIN_S = 0.003
MARGIN_FRACTION = 0.25


class StepPace:
    """How long steps take."""

    def __init__(self) -> None:
        self._taken_s: deque[float] = deque(maxlen=NUM_STEPS)

    def note(self, seconds: float) -> None:
        self._taken_s.append(seconds)

    @property
    def wait_s(self) -> float:
        """How long after the beginning of a step the next one should be sent; 0 if at once."""
        expected_s = min(self._taken_s, default=0.0)
        return max(0.0, expected_s - max(MARGIN_S, expected_s * MARGIN_FRACTION))
