"""Whether this router itself stood still (a stopped process, swap, a suspended machine), without I/O.

An answer that came meanwhile lay in its socket, and is read as if it had come just now. A tick that the event loop runs
again and again shows the gap. All times are of one clock in ms, passed in.
"""

from __future__ import annotations

#: ms between two ticks.
TICK_MS = 250
#: ms between two ticks from which on the loop counts as having stood still. Less is a matter of ``ANSWER_MARGIN``.
GAP_MS = 2 * TICK_MS
#: ms of ticks without a gap until all that had come before them has been read: the loop has gone round several times.
READ_MS = 2000


class Standstills:
    """The last standstill of one event loop."""

    def __init__(self) -> None:
        self._ticked_ms: int | None = None
        #: The tick before the last standstill, and the one that ended it.
        self._gap: tuple[int, int] | None = None

    def tick(self, now_ms: int) -> None:
        """Note that the loop runs."""
        if self._stands_still(now_ms):
            self._gap = self.unread_since_ms(now_ms), now_ms
        self._ticked_ms = now_ms

    def unread_since_ms(self, now_ms: int) -> int:
        """A time at which whatever is read now had not come yet: now, unless the loop stands still or just did."""
        if self._ticked_ms is None:
            return now_ms
        if self._gap is not None and self._ticked_ms - self._gap[1] < READ_MS:
            return self._gap[0]
        return self._ticked_ms if self._stands_still(now_ms) else now_ms

    def _stands_still(self, now_ms: int) -> bool:
        return self._ticked_ms is not None and now_ms - self._ticked_ms > GAP_MS
