"""The clock for everything except times that people read."""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic_ms() -> int:
    """This process's monotonic clock in ms."""
    return time.monotonic_ns() // 1_000_000


def boottime_ms() -> int:
    """Like ``monotonic_ms``, but it goes on while the machine is suspended, where the system has such a clock."""
    return time.clock_gettime_ns(_BOOTTIME) // 1_000_000
