"""The clock for everything except times that people read."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """This process's monotonic clock in ms."""
    return time.monotonic_ns() // 1_000_000
