"""Prefixes of request ids of which nothing is taken for a while: what was under way when their sender was given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.router import REFUSE_GONE_S

if TYPE_CHECKING:
    from collections.abc import Callable

#: So many at once; the oldest is forgotten first.
MAX_PREFIXES = 256


class GonePrefixes:
    """``clock`` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float], keep_s: float = REFUSE_GONE_S) -> None:
        self._clock = clock
        self._keep_s = keep_s
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def note(self, prefix: str) -> None:
        """Its sender is gone as of now."""
        self._until.pop(prefix, None)
        self._forget()
        if len(self._until) >= MAX_PREFIXES:
            del self._until[next(iter(self._until))]
        self._until[prefix] = self._clock() + self._keep_s

    def covers(self, request_id: str) -> bool:
        """A request of that id comes too late."""
        if not self._until:
            return False
        self._forget()
        return any(request_id.startswith(prefix) for prefix in self._until)

    def _forget(self) -> None:
        """Those whose time is over; they are in order."""
        now_s = self._clock()
        while self._until and next(iter(self._until.values())) <= now_s:
            del self._until[next(iter(self._until))]
