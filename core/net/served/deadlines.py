"""Timeouts of equal length for many things, with one timer for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


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
