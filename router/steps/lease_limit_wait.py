"""Counts that a prompt waits because of ``max_leased_fraction``, and how long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.metrics.metrics import Metrics


class LeaseLimitWait:
    """Of one prompt. ``begin`` as often as it is so, ``end`` once it waits no longer."""

    __slots__ = ("_metrics", "_since_s")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._since_s: float | None = None

    def begin(self) -> None:
        """It is next, and a worker that has room may not be sent it."""
        if self._since_s is None:
            self._metrics.num_lease_limit_waits += 1
            self._since_s = asyncio.get_running_loop().time()

    def end(self) -> None:
        """It waits no longer."""
        if self._since_s is not None:
            self._metrics.lease_limit_wait_s += asyncio.get_running_loop().time() - self._since_s
            self._since_s = None
