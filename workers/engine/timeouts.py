"""Timers for the steps, or the reads, that the ranks have not answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    #: The signature of ``loop.call_later``; returns a timer that can be cancelled.
    CallLater = Callable[[float, Callable[[int], None], int], Any]


class Timeouts:
    """Timers by the ids of steps, or of reads.

    ``on_timeout(number)`` is called at most once for each ``start``, ``timeout_s`` later.
    """

    def __init__(self, timeout_s: float, call_later: CallLater, on_timeout: Callable[[int], None]) -> None:
        self._timeout_s = timeout_s
        self._call_later = call_later
        self._on_timeout = on_timeout
        self._timers: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def start(self, number: int) -> None:
        self._timers[number] = self._call_later(self._timeout_s, self._fire, number)

    def _fire(self, number: int) -> None:
        del self._timers[number]
        self._on_timeout(number)

    def stop(self, number: int) -> None:
        """Stop the timer of a step or read that has ended; does nothing if the timer has fired."""
        timer = self._timers.pop(number, None)
        if timer is not None:
            timer.cancel()

    def stop_all(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
