"""Counts that a prompt waits because of ``max_leased_fraction``, and how long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.metrics.metrics import Metrics


class LeaseLimitWait:
    """The wait of one prompt. ``begin`` may be called again and again; ``end`` once the prompt waits no longer."""

    __slots__ = ("_metrics", "_since_s")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._since_s: float | None = None

    def begin(self) -> None:
        """The head of the queue waits although a worker has room, because that worker's leases exceed the limit."""
        if self._since_s is None:
            self._metrics.num_lease_limit_waits += 1
            self._since_s = asyncio.get_running_loop().time()

    def end(self) -> None:
        """The prompt waits no longer, for whatever reason."""
        if self._since_s is not None:
            self._metrics.lease_limit_wait_s += asyncio.get_running_loop().time() - self._since_s
            self._since_s = None
