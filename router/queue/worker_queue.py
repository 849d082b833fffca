"""Requests that wait for a worker with room: lowest ``priority`` first, then oldest. Woken by events, never polling.

One queue is for requests that wait for P, another for requests held for D. A request gets a place that is reserved for
it, so no place is promised twice. If the head of a queue finds no room, the requests behind it do not get the workers
that it waits for, however small they are: so the room on these workers grows until it suffices.

Where there is room for thousands at once, they are let go a few in each turn of the loop. All of them in one turn would
occupy the loop for seconds: no stream would get a token meanwhile, and what they wait for next would time out.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final

from baton_serve.core.process.turns import Turns
from baton_serve.router.placement import Ahead
from baton_serve.router.queue.drain_rate import DrainRate

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from baton_serve.router.placement import Need
    from baton_serve.router.pool import Reservation

    #: Reserves a place. If there is none now, returns None and notes in ``Ahead`` which workers the request waits for.
    Pick = Callable[[Ahead], Reservation | None]


#: Most waiters of a queue that get their places in one turn of the loop. The next step of each, to call the worker,
#: occupies the loop for 0.1 to 0.3 ms.
MOST_IN_A_TURN: Final = 32


def _always() -> bool:
    return True


class Waiter:
    """One request that waits."""

    def __init__(
        self,
        queue: WorkerQueue,
        pick: Pick,
        order: tuple[int, int],
        group: Hashable,
        num_bytes: int,
        need: Need | None,
    ) -> None:
        self._queue = queue
        self._pick = pick
        self._order = order
        #: Waiters of one group may use the same workers: if one waits for all of these, so do those behind it.
        self.group = group
        #: If a waiter finds no room, none of the same kind with as many or more tokens does. None: not known.
        self.kind: Hashable = None if need is None else (group, need.exact, need.source)
        self.num_tokens = 0 if need is None else need.num_tokens
        #: Size of the request's body.
        self.num_bytes = num_bytes
        #: Whether it waits no longer.
        self.has_left = False
        #: Whether the request can still be answered with 429.
        self.may_be_refused: Callable[[], bool] = _always
        self.future: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()

    @property
    def priority(self) -> int:
        """The request's priority; lower is more urgent."""
        return self._order[0]

    def __lt__(self, other: Waiter) -> bool:
        return self._order < other._order

    def offer(self, ahead: Ahead) -> bool:
        """Try to get a place. Returns True when the waiter need not be asked again.

        An exception is raised in the waiter, not in the caller, which only made room.
        """
        if self.future.done():
            return True
        try:
            found = self._pick(ahead)
        except Exception as error:  # noqa: BLE001 (raised in ``reservation``)
            self.future.set_exception(error)
            return True
        if found is None:
            return False
        self.future.set_result(found)
        return True

    def fail(self, error: Exception) -> bool:
        """End the wait with an error. Returns False if the wait was already over."""
        if self.future.done():
            return False
        self.future.set_exception(error)
        self._queue.forget(self)
        return True

    async def reservation(self) -> Reservation:
        """Wait for a reserved place. If the wait is cancelled, the place is released."""
        try:
            return await self.future
        except asyncio.CancelledError:
            self._queue.forget(self)
            if self.future.done() and not self.future.cancelled() and self.future.exception() is None:
                self._queue.give_back(self.future.result())
            raise


class WorkerQueue:
    """Waiters in order. ``give_back`` is called to release a reserved place that will not be used."""

    def __init__(self, give_back: Callable[[Reservation], None]) -> None:
        self.give_back = give_back
        #: The waiters of each group in order; no list is empty.
        self._groups: dict[Hashable, list[Waiter]] = {}
        self._num_waiters = 0
        #: Size of the bodies of all waiters.
        self.num_bytes = 0
        self.drain_rate = DrainRate()
        self._turns = Turns(MOST_IN_A_TURN, self.wake)

    def __len__(self) -> int:
        return self._num_waiters

    def enter(
        self,
        pick: Pick,
        priority: int,
        number: int,
        group: Hashable,
        num_bytes: int = 0,
        need: Need | None = None,
    ) -> Waiter:
        """Begin to wait for a place.

        ``number`` grows with every request. ``need``: the room that ``pick`` looks for.
        """
        waiter = Waiter(self, pick, (priority, number), group, num_bytes, need)
        waiters = self._groups.setdefault(group, [])
        waiter.group = waiters[0].group if waiters else group  # one object for all of them
        insort(waiters, waiter)
        self._num_waiters += 1
        self.num_bytes += num_bytes
        self.wake()
        return waiter

    def wake(self) -> None:
        """Offer room, if there is any now, to the waiters in order.

        As long as no waiter finds a place, nothing changes for those behind it. So a waiter is asked only if it needs
        less than all of its kind before it. Otherwise, while a worker has a little room, every end of a request would
        cause every waiter to be asked. Once waiters wait for all workers of a group, those behind them are skipped.
        """
        if not (self._num_waiters and self._turns.left):
            return
        ahead, now_s = Ahead(), asyncio.get_running_loop().time()
        smallest: dict[Hashable, int] = {}  # the least need that found no place, by kind
        served: list[Waiter] = []
        for waiter in self._in_order(ahead):
            # Not infinity, which is a float: compiled, what is typed as an integer has to be one.
            if waiter.num_tokens >= smallest.get(waiter.kind, sys.maxsize):
                continue
            if waiter.offer(ahead):
                smallest.clear()
                served.append(waiter)
                self.drain_rate.left(now_s)
                self._turns.take()
                if not self._turns.left:
                    break
            elif waiter.kind is not None:
                smallest[waiter.kind] = waiter.num_tokens
        for waiter in served:  # only now, because the lists were being read
            self._remove(waiter)

    def forget(self, waiter: Waiter) -> None:
        """Remove a waiter; does nothing if it is not in the queue."""
        if not waiter.has_left:
            self._remove(waiter)

    def less_urgent(self, priority: int) -> Iterator[Waiter]:
        """The waiters that are less urgent than ``priority`` and may be refused, the last in order first."""
        for waiter in heapq.merge(*map(reversed, self._groups.values()), reverse=True):
            if waiter.priority <= priority:
                break
            if not waiter.future.done() and waiter.may_be_refused():
                yield waiter

    def _in_order(self, ahead: Ahead) -> Iterator[Waiter]:
        """The waiters of all groups, except what is left of a group once it is in ``ahead``."""
        iterators = map(iter, self._groups.values())
        heads = [(next(waiters), number, waiters) for number, waiters in enumerate(iterators)]
        heapq.heapify(heads)
        while heads:
            head, number, waiters = heads[0]
            yield head
            following = None if head.group in ahead.groups else next(waiters, None)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, number, waiters))

    def _remove(self, waiter: Waiter) -> None:
        waiter.has_left = True
        self._num_waiters -= 1
        self.num_bytes -= waiter.num_bytes
        waiters = self._groups[waiter.group]
        del waiters[bisect_left(waiters, waiter)]  # no two are equal
        if not waiters:
            del self._groups[waiter.group]
