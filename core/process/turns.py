"""Bounds how many things are done in one turn of the event loop, so that what else is due comes between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turns:
    """Call ``take`` for each thing, only while ``left`` is not 0. Use it from one event loop.

    ``go_on`` is called in the turn after each one in which something was taken; ``left`` is ``most`` again then.
    """

    def __init__(self, most: int, go_on: Callable[[], None]) -> None:
        self._most = most
        #: Known from the first turn on.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._go_on = go_on
        #: How many more things may be done in this turn of the loop.
        self.left = most

    def take(self, num: int = 1) -> None:
        """Count one more thing in this turn, as ``num`` things, which may be more than are left."""
        if self.left == self._most:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()  # asks the system for the process each time
            self._loop.call_soon(self._next)
        self.left = max(0, self.left - num)

    def _next(self) -> None:
        self.left = self._most
        self._go_on()
