"""The one core of a simulated router: what it does for requests waits in line, tokens of streams take a share of it."""

from __future__ import annotations

#: The largest share that tokens may take: with more, the line would never end, and the router is too small anyhow.
MAX_TOKEN_SHARE = 0.98


class Cpu:
    """Work in order. ``token_share``: the part of the core that streams take, from 0 to ``MAX_TOKEN_SHARE``."""

    def __init__(self) -> None:
        self.token_share = 0.0
        self._free_at_s = 0.0

    def ends_s(self, now_s: float, work_s: float) -> float:
        """When work that comes now is done."""
        self._free_at_s = max(now_s, self._free_at_s) + work_s / (1 - min(self.token_share, MAX_TOKEN_SHARE))
        return self._free_at_s
