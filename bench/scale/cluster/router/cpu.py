"""The one core of a simulated router: what it does for requests waits in line, tokens and reports take a share."""

from __future__ import annotations

#: The largest share that counts: with more, the line would never end, and the router is too small anyhow.
MAX_SHARE = 0.98


class Cpu:
    """Work in order. ``share``: the part of the core that tokens of streams and reports of workers take."""

    def __init__(self) -> None:
        self.share = 0.0
        self._free_at_s = 0.0

    def ends_s(self, now_s: float, work_s: float) -> float:
        """When work that comes now is done."""
        self._free_at_s = max(now_s, self._free_at_s) + work_s / (1 - min(self.share, MAX_SHARE))
        return self._free_at_s
