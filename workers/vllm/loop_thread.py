"""A thread with an asyncio loop in the scheduler's process, for all that talks to Redis there.

The scheduler's thread never waits for Redis: it hands work over, and waits only for the end.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

#: Longest wait for what the loop does last, and for the end of the thread, seconds each.
STOP_TIMEOUT_S = 2.0


class LoopThread:
    """Call all methods in one other thread: ``start`` first, and nothing after ``stop``."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="baton-redis", daemon=True)

    def start(self) -> None:
        """Run what is handed over."""
        self._thread.start()

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call the function soon, on the loop."""
        self._loop.call_soon_threadsafe(function, *args)

    def finish(self, last: Coroutine[Any, Any, None]) -> bool:
        """Run the coroutine on the loop. Returns whether it has ended within ``STOP_TIMEOUT_S``."""
        ending = asyncio.run_coroutine_threadsafe(last, self._loop)
        try:
            ending.result(STOP_TIMEOUT_S)
        except TimeoutError:
            ending.cancel()
            return False
        return True

    def stop(self) -> None:
        """End the thread."""
        self.call(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()
