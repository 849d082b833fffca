"""One timer for everything the ranks were asked and have not answered: told once, when that takes too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer(Protocol):
    """What ``asyncio.TimerHandle`` is."""

    def cancel(self) -> None:
        """It does not fire any more."""


class CallLater(Protocol):
    """What ``loop.call_later`` is."""

    def __call__(self, delay_s: float, callback: Callable[[int], None], number: int, /) -> Timer:
        """Call ``callback(number)`` after ``delay_s`` seconds."""


class Timeouts:
    """For the steps, or for the reads, of one engine, by their ids.

    ``on_timeout(number)`` is called at most once for each ``start``. Without ``timeout_s`` (None, 0) never.
    """

    def __init__(self, timeout_s: float | None, call_later: CallLater, on_timeout: Callable[[int], None]) -> None:
        self._timeout_s = timeout_s
        self._call_later = call_later
        self._on_timeout = on_timeout
        self._timers: dict[int, Timer] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def start(self, number: int) -> None:
        """It was sent to the ranks."""
        if self._timeout_s:
            self._timers[number] = self._call_later(self._timeout_s, self._fire, number)

    def _fire(self, number: int) -> None:
        del self._timers[number]
        self._on_timeout(number)

    def stop(self, number: int) -> None:
        """It has ended; nothing happens if its timer has fired."""
        timer = self._timers.pop(number, None)
        if timer is not None:
            timer.cancel()

    def stop_all(self) -> None:
        """Nobody wants to know any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
