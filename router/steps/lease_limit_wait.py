"""Counts how often and how long prompts wait because of ``max_leased_fraction``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton_serve.router.metrics.metrics import Metrics


class LeaseLimitWait:
    """The wait of one prompt. ``begin`` may be called repeatedly; ``end`` when the prompt no longer waits."""

    __slots__ = ("_metrics", "_since_s")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._since_s: float | None = None

    def begin(self) -> None:
        """Note that the prompt waits although a worker has room, because that worker's leases exceed the limit."""
        if self._since_s is None:
            self._metrics.num_lease_limit_waits += 1
            self._since_s = asyncio.get_running_loop().time()

    def end(self) -> None:
        """Note that the prompt no longer waits, for whatever reason."""
        if self._since_s is not None:
            self._metrics.lease_limit_wait_s += asyncio.get_running_loop().time() - self._since_s
            self._since_s = None
