"""Counts what connections were refused or closed for, in one log line a minute, so that clients cannot fill the log."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from baton_serve.core.net.deadlines import Timers

logger = logging.getLogger("baton.net")

#: Least time between two lines, seconds.
PERIOD_S = 60.0

BAD_REQUEST = "requests that are no HTTP"
LARGE_HEAD = "request heads that are too large"
SLOW_HEAD = "connections without a request head in time"
UNREAD = "connections closed because nobody read the answer"
STUCK = "closed connections whose answer nobody read"
MADE_ROOM = "idle or unread connections closed to make room for others"
TURNED_AWAY = "connections turned away, max_connections being open"
NO_DESCRIPTORS = "times out of file descriptors"
CANNOT_ACCEPT = "times nothing could be accepted"
NOT_SERVED = "accepted connections closed because of a bug"
NO_TLS = "connections without a TLS handshake"
#: The notices that are logged as warnings, because an operator may have to act.
WARNINGS = (MADE_ROOM, TURNED_AWAY, NO_DESCRIPTORS, CANNOT_ACCEPT, NOT_SERVED)


class Notices:
    """Logs the first notice at once, and all notices of the next minute together at its end."""

    def __init__(self, timers: Timers, port: str) -> None:
        """``port`` is the name of the port in the log."""
        self._timers = timers
        self._port = port
        self._new: Counter[str] = Counter()
        self._pause: Any = None
        #: All notices so far.
        self.counts: Counter[str] = Counter()

    def note(self, what: str) -> None:
        """Count one notice, and log it unless the last line was less than a minute ago."""
        self.counts[what] += 1
        self._new[what] += 1
        if self._pause is None:
            self._tell()

    def close(self) -> None:
        """Log what has not been logged."""
        if self._pause is not None:
            self._pause.cancel()
        if self._new:
            self._tell()
        self._pause = None

    def _tell(self) -> None:
        self._pause = None
        if not self._new:
            return
        level = logging.WARNING if any(what.startswith(WARNINGS) for what in self._new) else logging.INFO
        told = ", ".join(f"{what}: {count}" for what, count in self._new.items())
        logger.log(level, "%s: %s", self._port, told)
        self._new.clear()
        self._pause = self._timers.call_at(self._timers.time() + PERIOD_S, self._tell)
