"""Suffixes of request ids that are refused for a while, because their router is gone and requests may still arrive."""

from __future__ import annotations

from collections.abc import Callable

from baton_serve.core.protocol.router import REFUSE_GONE_S

#: At most this many suffixes are remembered; the oldest is forgotten first.
MAX_SUFFIXES = 256


class Tombstones:
    """The refused suffixes. ``clock`` returns seconds and is monotonic."""

    def __init__(self, clock: Callable[[], float], keep_s: float = REFUSE_GONE_S) -> None:
        self._clock = clock
        self._keep_s = keep_s
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def note(self, suffix: str) -> None:
        """Refuse request ids with this suffix for ``keep_s`` from now."""
        self._until.pop(suffix, None)
        self._forget_expired()
        if len(self._until) >= MAX_SUFFIXES:
            del self._until[next(iter(self._until))]
        self._until[suffix] = self._clock() + self._keep_s

    def covers(self, request_id: str) -> bool:
        if not self._until:
            return False
        self._forget_expired()
        return any(request_id.endswith(suffix) for suffix in self._until)

    def _forget_expired(self) -> None:
        # All suffixes are kept equally long, so they expire in the order of insertion.
        now_s = self._clock()
        while self._until and next(iter(self._until.values())) <= now_s:
            del self._until[next(iter(self._until))]
