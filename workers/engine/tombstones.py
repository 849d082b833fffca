"""Suffixes of request ids of which nothing is taken for a while: what was under way when their sender was given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.protocol.router import REFUSE_GONE_S

if TYPE_CHECKING:
    from collections.abc import Callable

#: So many at once; the oldest is forgotten first.
MAX_SUFFIXES = 256


class Tombstones:
    """``clock`` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float], keep_s: float = REFUSE_GONE_S) -> None:
        self._clock = clock
        self._keep_s = keep_s
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def note(self, suffix: str) -> None:
        """Its sender is gone as of now."""
        self._until.pop(suffix, None)
        self._forget()
        if len(self._until) >= MAX_SUFFIXES:
            del self._until[next(iter(self._until))]
        self._until[suffix] = self._clock() + self._keep_s

    def covers(self, request_id: str) -> bool:
        """A request of that id comes too late."""
        if not self._until:
            return False
        self._forget()
        return any(request_id.endswith(suffix) for suffix in self._until)

    def _forget(self) -> None:
        """Those whose time is over; they are in order."""
        now_s = self._clock()
        while self._until and next(iter(self._until.values())) <= now_s:
            del self._until[next(iter(self._until))]
