"""The clock of a simulation: a heap of events behind asyncio's interface of an event loop.

The router's own queues and pools ask the running loop for the time, for futures and for timers. While this loop is the
running one they get simulated time, and no code of theirs is replaced. No time passes between two events.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from asyncio import events
from collections.abc import Callable
from contextvars import Context
from typing import Any, cast


class SimulatedLoop:
    """Events at one time happen in the order in which they were asked for. An exception in one of them ends ``run``."""

    def __init__(self) -> None:
        #: Seconds since the simulation began.
        self.now_s = 0.0
        #: Set by whoever knows that nothing more will come: what repeats itself is then not repeated.
        self.is_over = False
        self._numbers = itertools.count()
        #: It has what is asked of a loop that runs no coroutine, and not the rest of the interface.
        self._as_loop = cast("asyncio.AbstractEventLoop", self)
        self._heap: list[tuple[float, int, asyncio.TimerHandle]] = []

    def __enter__(self) -> SimulatedLoop:
        """Be the running loop of this thread. Raises RuntimeError if there is one."""
        if events._get_running_loop() is not None:
            raise RuntimeError("another event loop is running")
        events._set_running_loop(self._as_loop)
        return self

    def __exit__(self, *_: object) -> None:
        events._set_running_loop(None)

    def run(self) -> None:
        """Run the events in order until there are none."""
        while self._heap:
            when_s, _, handle = heapq.heappop(self._heap)
            if not handle.cancelled():
                self.now_s = when_s
                handle._run()

    def now_ms(self) -> int:
        """The clock of the lease store."""
        return int(self.now_s * 1000)

    # What is asked of an event loop. An event of the past happens now.

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
        return self.call_at(self.now_s, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """An event that may be cancelled."""
        handle = asyncio.TimerHandle(when, callback, args, self._as_loop, context)
        heapq.heappush(self._heap, (max(when, self.now_s), next(self._numbers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """The same, after that time."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Raise what an event has raised."""
        raise context["exception"]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled events stay in the heap until their time."""
