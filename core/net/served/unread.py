"""Connections that wait inside an answer until their client takes some of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from core.net.served.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.net.served.deadlines import Timers

#: Time between two looks at a connection, seconds: whoever takes nothing for that long makes room for others.
LOOK_S = 5.0


class Reader(Protocol):
    """What a connection is here."""

    #: The answer under way ends by a deadline of its own, whether or not the client reads it.
    has_deadline: bool

    def taken_bytes(self) -> int:
        """A number that changes whenever the client takes something."""


R = TypeVar("R", bound=Reader)


class Unread(Generic[R]):
    """``give_up`` is called with each that stays here and takes nothing for ``timeout_s`` and at most two looks more.

    One that takes a little every time may stay. One whose answer has a deadline of its own is left to that.
    """

    def __init__(self, timers: Timers, timeout_s: float, give_up: Callable[[R], None]) -> None:
        self._timers = timers
        self._timeout_s = timeout_s
        self._give_up = give_up
        self._looks = Deadlines[R](timers, min(LOOK_S, timeout_s), self._look)
        #: What each had taken when that was last seen to change, and when that was.
        self._taken: dict[R, tuple[int, float]] = {}
        #: Those that had taken nothing from one look to the next, the one that has been so for longest first.
        self._stalled: dict[R, None] = {}
        #: Its answer does not fit any more. Straight, since a long answer to a slow client does this often.
        self.add = self._looks.add

    def discard(self, reader: R) -> None:
        """It has taken enough to go on."""
        self._looks.discard(reader)
        self._taken.pop(reader, None)
        self._stalled.pop(reader, None)

    def oldest(self) -> R | None:
        """Of those that take nothing, the one that has been so for longest."""
        return next(iter(self._stalled), None)

    def close(self) -> None:
        """Nothing is waited for any more."""
        self._looks.close()
        self._taken.clear()
        self._stalled.clear()

    def _look(self, reader: R) -> None:
        now_s, taken = self._timers.time(), reader.taken_bytes()
        before, since_s = self._taken.get(reader, (None, now_s))
        if taken != before or reader.has_deadline:
            self._taken[reader] = taken, now_s
            self._stalled.pop(reader, None)
        elif now_s - since_s >= self._timeout_s:
            self.discard(reader)
            self._give_up(reader)
            return
        else:
            self._stalled[reader] = None
        self._looks.add(reader)
