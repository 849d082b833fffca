"""Connections whose client does not read its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from baton_serve.core.net.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_serve.core.net.deadlines import Timers

#: Seconds between two looks at a connection. A connection whose client reads nothing in between can be closed to make
#: room.
LOOK_S = 5.0


class Reader(Protocol):
    """The part of a connection that is needed here."""

    #: Whether the answer ends by a deadline of its own, whether or not the client reads it.
    has_deadline: bool

    def taken_bytes(self) -> int:
        """A number that changes whenever the client reads something."""


R = TypeVar("R", bound=Reader)


class Unread(Generic[R]):
    """Calls ``give_up`` with each reader that takes nothing for ``timeout_s``, at most two looks later.

    A reader that takes a little each time stays, and so does one whose answer has a deadline of its own.
    """

    def __init__(self, timers: Timers, timeout_s: float, give_up: Callable[[R], None]) -> None:
        self._timers = timers
        self._timeout_s = timeout_s
        self._give_up = give_up
        self._looks = Deadlines[R](timers, min(LOOK_S, timeout_s), self._look)
        #: By reader: the number of taken bytes when it last changed, and the time of that.
        self._taken: dict[R, tuple[int, float]] = {}
        #: Readers that took nothing between the last two looks, in the order in which they stalled.
        self._stalled: dict[R, None] = {}
        #: Add a reader whose write buffer is full. Not a method, because a long answer to a slow client calls it often.
        self.add = self._looks.add

    def discard(self, reader: R) -> None:
        """Note that the write buffer of the reader has room again."""
        self._looks.discard(reader)
        self._taken.pop(reader, None)
        self._stalled.pop(reader, None)

    def oldest(self) -> R | None:
        """The reader that has stalled for longest."""
        return next(iter(self._stalled), None)

    def close(self) -> None:
        """Forget all readers."""
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
