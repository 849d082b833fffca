"""The clock of a simulation: a heap of events behind asyncio's interface of an event loop.

The router's own queues and pools ask the running loop for the time, for futures and for timers. While this loop is the
running one they get simulated time, and no code of theirs is replaced. No time passes between two events.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context
    from types import TracebackType


class SimulatedLoop:
    """Events at one time happen in the order in which they were asked for. An exception in one of them ends ``run``."""

    def __init__(self) -> None:
        #: Seconds since the simulation began.
        self.now_s = 0.0
        #: Set by whoever knows that nothing more will come: what repeats itself is then not repeated.
        self.is_over = False
        self._number = 0
        #: It has what is asked of a loop that runs no coroutine, and not the rest of the interface.
        self._as_loop = cast("asyncio.AbstractEventLoop", self)
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...], asyncio.Handle | None]] = []

    def __enter__(self) -> SimulatedLoop:
        """Be the running loop of this thread. Raises RuntimeError if there is one."""
        if events._get_running_loop() is not None:
            raise RuntimeError("another event loop is running")
        events._set_running_loop(self._as_loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        events._set_running_loop(None)

    def at(self, when_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Call at that time, or now if it is past. Raises ValueError for a time that is not a number."""
        self._push(when_s, callback, args, None)

    def after(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Call after that time."""
        self._push(self.now_s + delay_s, callback, args, None)

    def run(self, until_s: float | None = None) -> None:
        """Run the events in order until there are none, or all before ``until_s``; then it is that time."""
        heap = self._heap
        while heap and (until_s is None or heap[0][0] < until_s):
            when_s, _, callback, args, handle = heapq.heappop(heap)
            if handle is None or not handle.cancelled():
                self.now_s = when_s
                callback(*args)
        if until_s is not None:
            self.now_s = max(self.now_s, until_s)

    def now_ms(self) -> int:
        """The clock of the lease store."""
        return int(self.now_s * 1000)

    def _push(
        self, when_s: float, callback: Callable[..., object], args: tuple[Any, ...], handle: asyncio.Handle | None
    ) -> None:
        if when_s != when_s:  # NaN would break the heap's order without a sign
            raise ValueError("an event needs a time")
        self._number += 1
        heapq.heappush(self._heap, (max(when_s, self.now_s), self._number, callback, args, handle))

    # What the router's code asks of an event loop.

    def time(self) -> float:
        """Seconds since the simulation began."""
        return self.now_s

    def get_debug(self) -> bool:
        """Never: futures would record where they were made."""
        return False

    def create_future(self) -> asyncio.Future[Any]:
        """A future whose callbacks are events of this loop."""
        return asyncio.Future(loop=self._as_loop)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """An event at the present time."""
        handle = asyncio.Handle(callback, args, self._as_loop, context)
        self._push(self.now_s, callback, args, handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """An event that may be cancelled."""
        handle = asyncio.TimerHandle(when, callback, args, self._as_loop, context)
        self._push(when, callback, args, handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """An event that may be cancelled."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled events stay in the heap until their time."""
