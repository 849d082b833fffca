"""Warnings about entries that a registry ignores, limited: a writer to Redis must not be able to fill the log."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from baton_serve.core.process.log_pace import OncePerMinute

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

#: Most keys or channels for which a value that is not Baton's is logged.
MAX_COMPLAINTS = 100


class Complaints:
    """The warnings of one registry. ``kind`` is the name of its kind, such as ``worker``."""

    def __init__(self, kind: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._kind = kind
        self._places: set[bytes] = set()
        self._untrusted = OncePerMinute(clock)

    def foreign(self, place: bytes, why: str) -> None:
        """Warn that another program wrote a value: once for each ``place`` (key or channel), which is read often."""
        if place not in self._places and len(self._places) < MAX_COMPLAINTS:
            self._places.add(place)
            logger.warning("ignored a foreign value in the registry at %s: %s", printable(place), why)

    def untrusted(self, who: str) -> None:
        """Warn of an announcement without a valid signature: once a minute, with the number since the last warning."""
        num_new = self._untrusted.due()
        if not num_new:
            return
        logger.warning(
            "ignored %s %s: its announcement is not signed with this router's internal token%s",
            self._kind,
            who,
            f" ({num_new} such announcements since the last line)" if num_new > 1 else "",
        )


def printable(place: bytes) -> str:
    """The key as text for the log: at most 200 bytes of it, and escaped unless all of it is printable."""
    text = place[:200].decode(errors="backslashreplace")
    return text if text.isprintable() else ascii(text)
