"""What a registry complains about in the log, and how often: whoever may write into Redis must not fill it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

#: So many foreign values are complained about; more would only fill the log.
MAX_COMPLAINTS = 100
#: Between two lines about announcements of strangers, however many there are.
STRANGERS_EVERY_S = 60.0


class Complaints:
    """Of one registry. ``kind``: whose announcements it has, workers' or routers'."""

    def __init__(self, kind: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._kind = kind
        self._clock = clock
        self._places: set[bytes] = set()
        self._next_stranger_s = clock()
        self._num_strangers = 0

    def foreign(self, place: bytes, why: str) -> None:
        """A value that nobody of ours writes. Once for each place: it is read again and again."""
        if place not in self._places and len(self._places) < MAX_COMPLAINTS:
            self._places.add(place)
            logger.warning("ignored a foreign value in the registry at %s: %s", printable(place), why)

    def stranger(self, who: str) -> None:
        """An announcement without our signature. Once a minute, with their number."""
        self._num_strangers += 1
        if self._clock() < self._next_stranger_s:
            return
        logger.warning(
            "ignored %s %s: its announcement is not signed with this router's internal token%s",
            self._kind,
            who,
            f" ({self._num_strangers} such announcements since the last line)" if self._num_strangers > 1 else "",
        )
        self._num_strangers = 0
        self._next_stranger_s = self._clock() + STRANGERS_EVERY_S


def printable(place: bytes) -> str:
    """Of a key that anybody may have written: a readable one as it is, any other escaped, and never a long one."""
    text = place[:200].decode(errors="backslashreplace")
    return text if text.isprintable() else ascii(text)
