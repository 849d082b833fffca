"""Timeouts of equal length for many things, with one timer for all of them.

Nearly every timeout is cancelled. A timer of an event loop costs several times as much as an entry of a dictionary, and
most timeouts of a process have one of a few lengths. Timeouts of one length are due in the order in which they began.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

T = TypeVar("T")

#: Delays remembered. Beyond this number, delays without a timeout under way are forgotten.
MAX_DELAYS: Final = 64


class Timers(Protocol):
    """The part of an event loop that is needed here."""

    def time(self) -> float:
        """The present time in seconds."""

    def call_at(self, when: float, callback: Callable[[], object], /) -> Any:
        """Call ``callback`` at that time, unless the returned handle is cancelled."""


class Deadlines(Generic[T]):
    """Removes each item ``timeout_s`` after it was added, and then calls ``on_due`` with it.

    Adding and discarding cost one entry of a dictionary each, because items are discarded far more often than due.
    """

    def __init__(self, timers: Timers, timeout_s: float, on_due: Callable[[T], None]) -> None:
        self._timers = timers
        self._timeout_s = timeout_s
        self._on_due = on_due
        self._due_s: dict[T, float] = {}  # in the order in which they are due
        self._timer: Any = None

    def __len__(self) -> int:
        return len(self._due_s)

    def __contains__(self, item: object) -> bool:
        return item in self._due_s

    def add(self, item: T) -> None:
        """Start the timeout of ``item``, unless it runs already."""
        if item in self._due_s:
            return
        self._due_s[item] = due_s = self._timers.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._timers.call_at(due_s, self._wake)

    def discard(self, item: T) -> None:
        """Stop the timeout of ``item``."""
        self._due_s.pop(item, None)

    def oldest(self) -> T | None:
        """The item that is due next."""
        return next(iter(self._due_s), None)

    def close(self) -> None:
        """Stop all timeouts."""
        self._due_s.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        now_s = self._timers.time()
        try:
            while self._due_s:
                item, due_s = next(iter(self._due_s.items()))
                if due_s > now_s:
                    return
                del self._due_s[item]
                self._on_due(item)
        finally:  # only now: items that were added meanwhile are due after the others
            self._timer = None
            if self._due_s:
                self._timer = self._timers.call_at(next(iter(self._due_s.values())), self._wake)


def _nothing() -> None:
    """What a cancelled timeout calls."""


class Timeout:
    """One call that is to be made, unless ``cancel`` is called before."""

    __slots__ = ("_call", "_deadlines")

    def __init__(self, deadlines: Deadlines[Timeout], call: Callable[[], object]) -> None:
        self._deadlines = deadlines
        self._call = call

    def cancel(self) -> None:
        """Do not call any more. Does nothing after the call."""
        self._deadlines.discard(self)
        self._call = _nothing  # else it would keep the caller, which mostly keeps it

    def due(self) -> None:
        """Call."""
        self._call()


class Timeouts:
    """``call_later`` of an event loop, for delays of few different lengths."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._by_delay: dict[float, Deadlines[Timeout]] = {}

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timeout:
        """Call after ``delay_s`` seconds, unless the returned timeout is cancelled."""
        deadlines = self._by_delay.get(delay_s)
        if deadlines is None:
            deadlines = self._add(delay_s)
        timeout = Timeout(deadlines, call)
        deadlines.add(timeout)
        return timeout

    def close(self) -> None:
        """Make no call any more."""
        for deadlines in self._by_delay.values():
            deadlines.close()

    def _add(self, delay_s: float) -> Deadlines[Timeout]:
        if len(self._by_delay) >= MAX_DELAYS:
            self._by_delay = {delay_s: some for delay_s, some in self._by_delay.items() if len(some)}
        self._by_delay[delay_s] = added = Deadlines[Timeout](self._timers, delay_s, Timeout.due)
        return added
